"""Constraints made to be costly or to break, beside requests that they must not touch."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
from core_client import Client, is_over, output, text
from history_model import EOS, VOCAB_SIZE, Updates, history_core, right_output
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFailed, GenerationFinished, GenerationRequest
from flowforge.errors import WorkflowError
from flowforge.grammars import Vocabulary, compile_json_schema, compile_regex
from flowforge.grammars.compilation import CompileLimits, compile_mask_grammar

if TYPE_CHECKING:
    from flowforge.engine.constraint import TokenConstraint

NESTED: dict[str, Any] = {
    "$ref": "#/$defs/l",
    "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}},
}
BRACKET = EOS + 1
AMBIGUOUS = 'start: e\ne: e e | "A" | e "A" e |'


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """The stand-in's: an end token, and characters."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    characters = ["[", "]", *sorted(alphabet - {"[", "]"})]
    vocab = {"<end>": EOS, **{one: BRACKET + idx for idx, one in enumerate(characters)}}
    vocab = {one: idx for one, idx in vocab.items() if idx < VOCAB_SIZE}
    backend = BackendTokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    return Vocabulary(backend.to_str(), eos_ids=[EOS], vocab_size=VOCAB_SIZE)


def hostile(name: str) -> TokenConstraint:
    """A fresh constraint."""
    if name == "nested brackets":
        return compile_json_schema(NESTED, vocabulary()).start()
    if name == "a regex with many states":
        return compile_regex("[0-9A]*A[0-9A]{200}", vocabulary()).start()
    limits = CompileLimits(step_items=200)
    return compile_mask_grammar(AMBIGUOUS, vocabulary(), limits).start()


def steps_of_healthy(constraint: TokenConstraint | None, hostile_updates: Updates) -> int:
    """Engine steps until three ordinary requests have ended, all of them rightly."""
    # With pages for all: who is admitted leaves room for what the others will write.
    core, _, _ = history_core(num_pages=128)
    client = Client(core)
    if constraint is not None:
        # The bias goes deep into brackets; the least length keeps the others from an early end.
        params = SamplingParams(max_tokens=150, min_tokens=140, logit_bias={BRACKET: 50.0})
        request = GenerationRequest(params, constraint=constraint)
        core.generate(client.open(text(3)), request, hostile_updates)
    healthy = [client.request(text(9, first=first), 30) for first in (3, 5, 7)]
    num_steps = 0
    while not all(is_over(one) for one in healthy):
        core.step()
        core.check_invariants()
        num_steps += 1
        assert num_steps < 200

    for first, one in zip((3, 5, 7), healthy, strict=True):
        assert right_output(text(9, first=first), 30) == output(one)
    while constraint is not None and not is_over(hostile_updates):
        core.step()
    return num_steps


@pytest.mark.parametrize(
    "name", ["nested brackets", "a regex with many states", "a grammar read in many ways"]
)
def test_a_hostile_constraint_takes_no_step_from_its_neighbours(name: str) -> None:
    updates = Updates()

    alone = steps_of_healthy(None, Updates())
    beside = steps_of_healthy(hostile(name), updates)

    # One more at most, for the prompt that has to be computed beside theirs.
    assert beside <= alone + 1
    end = updates[-1]
    if name == "a grammar read in many ways":
        assert isinstance(end, GenerationFailed)
        assert isinstance(end.error, WorkflowError)
        assert "WF418" == end.error.code
    else:
        assert isinstance(end, GenerationFinished)
