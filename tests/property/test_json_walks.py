"""Random walks through masks: whatever the model picks, the answer fits its schema."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.grammars import CompiledConstraint, Vocabulary, compile_json_schema, validate_json

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from flowforge.grammars import ConstraintState

pytestmark = pytest.mark.model

SCHEMAS: list[Any] = [
    {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
    {
        "type": "object",
        "properties": {
            "verdict": {"enum": ["yes", "no"]},
            "score": {"type": "integer", "minimum": 0, "maximum": 100},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        },
        "required": ["verdict", "score"],
        "additionalProperties": False,
    },
]
MAX_STEPS = 400


@pytest.fixture(scope="session")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.fixture(scope="session")
def compiled(tokenizer: Tokenizer) -> list[CompiledConstraint]:
    vocabulary = Vocabulary(
        tokenizer.tokenizer_json, eos_ids=tokenizer.eos_ids, vocab_size=tokenizer.vocab_size
    )
    return [compile_json_schema(schema, vocabulary) for schema in SCHEMAS]


@pytest.fixture(scope="session")
def quotes(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that start with a quote."""
    token_ids = range(tokenizer.vocab_size)
    return frozenset(t for t in token_ids if tokenizer.token_bytes(t).startswith(b'"'))


@settings(max_examples=40)
@given(seed=st.integers(min_value=0), schema_idx=st.sampled_from(range(len(SCHEMAS))))
def test_a_random_walk_ends_in_an_answer_that_fits(
    tokenizer: Tokenizer,
    compiled: list[CompiledConstraint],
    quotes: frozenset[int],
    seed: int,
    schema_idx: int,
) -> None:
    state = compiled[schema_idx].start()
    pick = random.Random(seed)
    token_ids: list[int] = []

    while not state.is_complete:
        token_id = choose(state, quotes, pick)
        state.advance(token_id)
        token_ids.append(token_id)
        assert len(token_ids) < MAX_STEPS

    validate_json(tokenizer.decode(token_ids), SCHEMAS[schema_idx])


@settings(max_examples=40)
@given(seed=st.integers(min_value=0))
def test_a_fork_at_any_token_sees_the_same_masks(
    compiled: list[CompiledConstraint], quotes: frozenset[int], seed: int
) -> None:
    state, pick = compiled[1].start(), random.Random(seed)
    for _ in range(pick.randrange(10)):
        if not state.is_complete:
            state.advance(choose(state, quotes, pick))
    fork = state.fork()

    if not state.is_complete:
        token_id = choose(state, quotes, pick)
        state.advance(token_id)
        fork.advance(token_id)

    assert mask_of(state).tolist() == mask_of(fork).tolist()


def choose(state: ConstraintState, quotes: frozenset[int], pick: random.Random) -> int:
    """One allowed token; every third time one with a quote, or strings would hardly end."""
    bits = np.unpackbits(mask_of(state).view(np.uint8), bitorder="little")
    allowed: list[int] = np.flatnonzero(bits).tolist()
    assert allowed
    closing = sorted(quotes.intersection(allowed))
    return pick.choice(closing if closing and pick.randrange(3) == 0 else allowed)


def mask_of(state: ConstraintState) -> npt.NDArray[np.uint32]:
    words = np.zeros((49_152 + 31) // 32, dtype=np.uint32)
    state.fill_mask(words)
    return words
