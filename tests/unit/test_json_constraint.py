"""Masks of JSON constraints over the default model's vocabulary, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError, WorkflowError
from flowforge.grammars import ConstraintState, Vocabulary, compile_json_schema

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.constraint import TokenConstraint

pytestmark = pytest.mark.model

WIDTH = 49_180  # wider than the tokenizer's 49,152, and no multiple of 32
EOS_IDS = (0, 2)
THREE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3}


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer.tokenizer_json, eos_ids=EOS_IDS, vocab_size=WIDTH)


def allowed(state: TokenConstraint) -> set[int]:
    words = np.full((WIDTH + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
    state.fill_mask(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def feed(state: ConstraintState, token_ids: list[int]) -> None:
    for token_id in token_ids:
        assert token_id in allowed(state)
        state.advance(token_id)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (THREE, '["Cost","Rider safety","Größe 👎"]'),
        ({"type": "integer", "minimum": -5}, "-5"),
        ({"enum": ['a"b', "\\", None, 1.5, True]}, '"a\\"b"'),
        ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, '{"a":1}'),
        ({"$ref": "#/$defs/t", "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}}, "[[],[[]]]"),
        (True, '{"any":[1,null]}'),
    ],
)
def test_a_valid_text_passes_token_by_token(
    tokenizer: Tokenizer, vocabulary: Vocabulary, schema: Any, text: str
) -> None:
    state = compile_json_schema(schema, vocabulary).start()

    feed(state, tokenizer.encode(text))

    assert state.is_accepting
    assert set(EOS_IDS) <= allowed(state)


def test_end_tokens_are_allowed_exactly_where_the_output_may_end(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    state = compile_json_schema(THREE, vocabulary).start()

    for token_id in tokenizer.encode('["a","b","c"]'):
        assert not state.is_accepting
        assert allowed(state).isdisjoint(EOS_IDS)
        state.advance(token_id)

    assert state.is_complete
    assert set(EOS_IDS) == allowed(state)


def test_an_output_that_may_end_may_also_go_on(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    state = compile_json_schema({"type": "integer"}, vocabulary).start()

    feed(state, tokenizer.encode("12"))

    assert state.is_accepting
    assert not state.is_complete
    assert {*EOS_IDS, *tokenizer.encode("7")} <= allowed(state)


@pytest.mark.parametrize("eos_id", EOS_IDS)
def test_every_end_token_ends_an_output(
    tokenizer: Tokenizer, vocabulary: Vocabulary, eos_id: int
) -> None:
    state = compile_json_schema({"type": "integer"}, vocabulary).start()
    feed(state, [*tokenizer.encode("12"), eos_id])

    assert state.is_complete
    with pytest.raises(ValueError, match="not allowed"):
        state.advance(tokenizer.encode("3")[0])


def test_control_and_padded_tokens_are_never_allowed(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    state = compile_json_schema(True, vocabulary).start()

    feed(state, tokenizer.encode('"anything'))

    ids = allowed(state)
    assert ids.isdisjoint(tokenizer.special_ids)
    assert max(ids) < tokenizer.vocab_size


def test_no_white_space_between_the_tokens_of_json(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    state = compile_json_schema(THREE, vocabulary).start()

    feed(state, tokenizer.encode('["a",'))

    starts = {tokenizer.token_bytes(token_id)[:1] for token_id in allowed(state)}
    assert starts == {b'"'}


def test_a_refused_token_leaves_the_state_as_it_was(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    state = compile_json_schema(THREE, vocabulary).start()
    before = allowed(state)

    for wrong in (tokenizer.encode("{")[0], 2, WIDTH - 1, WIDTH, -1):
        with pytest.raises(ValueError, match=str(wrong)):
            state.advance(wrong)

    assert before == allowed(state)
    feed(state, tokenizer.encode('["a","b","c"]'))
    assert state.is_complete


def test_a_fork_and_its_original_go_on_independently(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    original = compile_json_schema({"enum": ["left", "right"]}, vocabulary).start()
    feed(original, tokenizer.encode('"'))
    fork = original.fork()

    feed(original, tokenizer.encode('left"'))
    feed(fork, tokenizer.encode('right"'))

    assert original.is_complete
    assert fork.is_complete


def test_outputs_started_from_one_constraint_are_apart(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    compiled = compile_json_schema(THREE, vocabulary)
    first = compiled.start()

    feed(first, tokenizer.encode('["a","b","c"]'))

    assert not compiled.start().is_accepting


def test_what_has_only_one_continuation_is_forced(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    state = compile_json_schema({"const": {"name": "abcdef"}}, vocabulary).start()
    forced = state.forced_tokens()

    assert '{"name":"abcdef"}'.startswith(tokenizer.decode(forced))
    assert len(forced) > 3
    assert not state.is_accepting
    feed(state, forced)
    assert state.forced_tokens() == [] or not state.is_complete


def test_nothing_is_forced_where_there_is_a_choice(vocabulary: Vocabulary) -> None:
    assert compile_json_schema(True, vocabulary).start().forced_tokens() == []


def test_a_mask_of_another_shape_is_refused(vocabulary: Vocabulary) -> None:
    state = compile_json_schema(True, vocabulary).start()

    with pytest.raises(ValueError, match=f"uint32\\[{(WIDTH + 31) // 32}\\]"):
        state.fill_mask(np.zeros(8, dtype=np.uint32))


def test_an_unenforceable_schema_does_not_compile(vocabulary: Vocabulary) -> None:
    with pytest.raises(WorkflowError) as caught:
        compile_json_schema({"properties": {"a": {"uniqueItems": True}}}, vocabulary)

    assert caught.value.code == "WF411"
    assert "/properties/a/uniqueItems" in caught.value.message


@pytest.mark.parametrize(("eos_ids", "width"), [((), WIDTH), ((WIDTH,), WIDTH), ((2,), 100)])
def test_sizes_that_do_not_fit_together_are_an_engine_error(
    tokenizer: Tokenizer, eos_ids: tuple[int, ...], width: int
) -> None:
    with pytest.raises(EngineError) as caught:
        Vocabulary(tokenizer.tokenizer_json, eos_ids=eos_ids, vocab_size=width)

    assert caught.value.code == "EN311"
