"""Outputs that are closed before they are cut."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from vocabularies import allowed_ids, default_tokenizer, default_vocabulary

from flowforge.grammars import compile_json_schema, compile_regex, validate_json
from flowforge.grammars.closing_state import ClosingState

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.text.tokenizer import Tokenizer
    from flowforge.grammars import CompiledConstraint, Vocabulary

pytestmark = pytest.mark.model

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "place": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    "required": ["name", "tags", "place"],
    "additionalProperties": False,
}
SCHEMAS: list[Any] = [
    FORM,
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": FORM, "minItems": 1},
    {"enum": ["north", "north-west", "south"]},
    {"type": "string", "pattern": "^[a-z]{2,}-[0-9]{3}$"},
]
ROOM = 40


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return default_tokenizer(default_model_dir)


@pytest.fixture(scope="module")
def vocabulary(default_model_dir: Path) -> Vocabulary:
    return default_vocabulary(default_model_dir)


def walk(compiled: CompiledConstraint, seed: int, room: int) -> tuple[list[int], ClosingState]:
    """Sample at random until the output is complete or its room is used up."""
    state = ClosingState(compiled.start())
    state.limit_to(room)
    return go_on(compiled, state, random.Random(seed), room), state


def go_on(
    compiled: CompiledConstraint, state: ClosingState, pick: random.Random, room: int
) -> list[int]:
    token_ids: list[int] = []
    while len(token_ids) < room and not state.is_complete:
        allowed = allowed_ids(state, compiled.vocabulary.vocab_size)
        assert allowed
        token_id = pick.choice(allowed)
        if token_id in compiled.vocabulary.eos_ids:
            break
        if state.advance(token_id):
            token_ids.append(token_id)
            for forced in state.forced_tokens()[: room - len(token_ids)]:
                assert state.advance(forced)
                token_ids.append(forced)
    return token_ids


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_a_random_output_with_little_room_is_closed_and_valid(
    vocabulary: Vocabulary, tokenizer: Tokenizer, schema: Any
) -> None:
    compiled = compile_json_schema(schema, vocabulary)

    for seed in range(10):
        token_ids, state = walk(compiled, seed, ROOM)

        assert state.is_accepting
        validate_json(tokenizer.decode(token_ids), schema)


def test_an_output_that_ends_by_itself_is_not_closed(vocabulary: Vocabulary) -> None:
    compiled = compile_json_schema({"enum": ["yes", "no"]}, vocabulary)

    _, state = walk(compiled, 0, ROOM)

    assert state.is_complete
    assert not state.was_closed


def test_a_long_text_is_closed_where_its_room_ends(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    compiled = compile_json_schema({"type": "array", "items": {"type": "string"}}, vocabulary)
    state = ClosingState(compiled.start())
    state.limit_to(ROOM)
    word = tokenizer.encode(" on")[0]
    token_ids = tokenizer.encode('["')
    for token_id in token_ids:
        state.advance(token_id)

    while not state.is_complete:
        taken = [word] if state.advance(word) else []
        taken += state.forced_tokens() if taken else []
        for token_id in taken[1:]:
            state.advance(token_id)
        token_ids += taken

    assert state.was_closed
    assert ROOM - 2 <= len(token_ids) <= ROOM
    assert tokenizer.decode(token_ids).endswith(' on"]')


def test_a_regex_is_closed_too(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    compiled = compile_regex("[A-Z]+(-[0-9]{3})+;", vocabulary)

    for seed in range(10):
        token_ids, state = walk(compiled, seed, ROOM)

        assert state.is_accepting, tokenizer.decode(token_ids)
        assert tokenizer.decode(token_ids).endswith(";")


def test_what_cannot_be_closed_goes_on_until_it_is_cut(vocabulary: Vocabulary) -> None:
    compiled = compile_json_schema({"type": "string", "minLength": 1_000}, vocabulary)

    _, state = walk(compiled, 0, 10)

    assert not state.is_accepting
    assert not state.was_closed


def test_a_fork_is_closed_in_its_own_way(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    compiled = compile_json_schema(FORM, vocabulary)
    state = ClosingState(compiled.start())
    state.limit_to(ROOM)
    beginning = tokenizer.encode('{"name":"a')
    for token_id in beginning:
        state.advance(token_id)
    fork = state.fork()

    room = ROOM - len(beginning)
    first = go_on(compiled, state, random.Random(1), room)
    second = go_on(compiled, fork, random.Random(2), room)

    assert first != second
    for rest in (first, second):
        assert json.loads(tokenizer.decode([*beginning, *rest]))["name"].startswith("a")
