"""Thoughts before an answer: what the mask holds where, and where the answer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from byte_vocabulary import byte_vocabulary

from flowforge.backends.thoughts import ThoughtReader
from flowforge.grammars import compile_json_schema
from flowforge.grammars.closing_state import ClosingState
from flowforge.grammars.thinking import Thinking, ThinkingMarks, ThinkingState, compile_thoughts

if TYPE_CHECKING:
    from byte_vocabulary import ByteVocabulary

    from flowforge.grammars.schema_dialect import JsonValue

SCHEMA: JsonValue = {"type": "array", "items": {"type": "string"}}
MARKS = [["<think>", "</think>"], []]  # as tokens of their own, and as plain text


def thinking_in(vocabulary: ByteVocabulary, budget: int, *, is_opened: bool = False) -> Thinking:
    opening = [] if is_opened else vocabulary.encode("<think>")
    closing, bridge = vocabulary.encode("</think>"), vocabulary.encode("\n\n")
    marks = ThinkingMarks(tuple(opening), "</think>", tuple(closing), tuple(bridge))
    return Thinking(marks, budget)


def state_in(
    vocabulary: ByteVocabulary, thinking: Thinking, *, is_free: bool = False
) -> ThinkingState:
    thoughts = compile_thoughts("</think>", vocabulary.vocabulary).start()
    if is_free:
        return ThinkingState(thinking, thoughts, None)
    return ThinkingState(
        thinking, thoughts, compile_json_schema(SCHEMA, vocabulary.vocabulary).start()
    )


def allowed(state: ThinkingState, vocabulary: ByteVocabulary) -> set[int]:
    mask = np.empty(vocabulary.vocabulary.num_mask_words, dtype=np.uint32)
    state.fill_mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {int(one) for one in np.flatnonzero(bits)}


@pytest.mark.parametrize("control", MARKS)
def test_the_form_holds_behind_the_thoughts_and_only_there(control: list[str]) -> None:
    vocabulary = byte_vocabulary(control)
    state = state_in(vocabulary, thinking_in(vocabulary, 100))
    text = vocabulary.encode('<think>a { is <b> no array\n</think>\n\n["x"]')

    for token_id in text:
        assert not state.is_complete
        assert token_id in allowed(state, vocabulary)
        assert state.is_accepting or not allowed(state, vocabulary) & vocabulary.vocabulary.eos_ids
        state.advance(token_id)

    assert state.is_complete


@pytest.mark.parametrize("control", MARKS)
def test_at_the_end_of_their_budget_thoughts_are_closed(control: list[str]) -> None:
    vocabulary = byte_vocabulary(control)
    thinking = thinking_in(vocabulary, 3, is_opened=True)
    state = state_in(vocabulary, thinking)

    for token_id in vocabulary.encode("hmm"):
        assert not state.forced_tokens()
        state.advance(token_id)

    forced = state.forced_tokens()
    assert "</think>\n\n" == vocabulary.decode(forced)
    for token_id in forced:
        assert {token_id} == allowed(state, vocabulary)
        state.advance(token_id)
    assert "[" == vocabulary.decode(sorted(allowed(state, vocabulary)))


def test_a_character_is_whole_before_thoughts_are_closed() -> None:
    vocabulary = byte_vocabulary(["</think>"])
    thinking = thinking_in(vocabulary, 1, is_opened=True)
    state = state_in(vocabulary, thinking)
    token_ids = vocabulary.encode("€")

    for token_id in token_ids:
        assert not state.forced_tokens()
        state.advance(token_id)

    assert "</think>\n\n" == vocabulary.decode(state.forced_tokens())
    assert len(token_ids) + len(state.forced_tokens()) <= thinking.most_tokens


def test_free_text_behind_thoughts_may_be_anything_and_end_anywhere() -> None:
    vocabulary = byte_vocabulary(["</think>"])
    state = state_in(vocabulary, thinking_in(vocabulary, 9, is_opened=True), is_free=True)
    for token_id in vocabulary.encode("ok</think>\n\n"):
        assert not state.is_accepting
        state.advance(token_id)

    everything = set(range(vocabulary.vocabulary.vocab_size))
    assert everything <= allowed(state, vocabulary)
    state.advance(65)
    assert state.is_accepting
    assert not state.is_complete


def test_a_fork_within_thoughts_goes_on_by_itself() -> None:
    vocabulary = byte_vocabulary(["</think>"])
    state = state_in(vocabulary, thinking_in(vocabulary, 9, is_opened=True))
    for token_id in vocabulary.encode("ab"):
        state.advance(token_id)

    fork = state.fork()
    for token_id in vocabulary.encode('</think>\n\n["'):
        state.advance(token_id)

    assert vocabulary.encode("c")[0] in allowed(fork, vocabulary)
    for token_id in vocabulary.encode("c</think>\n\n[]"):
        fork.advance(token_id)
    assert fork.is_complete
    assert not state.is_complete


def test_room_for_a_short_ending_is_that_of_the_answer() -> None:
    vocabulary = byte_vocabulary(["</think>"])
    thoughts = compile_thoughts("</think>", vocabulary.vocabulary).start()
    answer = ClosingState(compile_json_schema(SCHEMA, vocabulary.vocabulary).start())
    thinking = thinking_in(vocabulary, 40, is_opened=True)
    state = ThinkingState(thinking, thoughts, answer, max_tokens=6)
    state.limit_to(6 + thinking.most_tokens)
    for token_id in vocabulary.encode("long thoughts of many tokens</think>\n\n"):
        state.advance(token_id)

    num_tokens = 0
    while not state.is_complete:
        wanted = vocabulary.encode('["xxxxxxxxx')[num_tokens]
        choices = allowed(state, vocabulary)
        state.advance(wanted if wanted in choices else min(choices))
        num_tokens += 1

    assert 6 >= num_tokens
    assert state.was_closed


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("control", MARKS)
def test_tokens_of_thoughts_and_answer_are_told_apart_however_they_come(
    control: list[str], size: int
) -> None:
    vocabulary = byte_vocabulary(control)
    reader = ThoughtReader(vocabulary.tokenizer, thinking_in(vocabulary, 9).marks)
    token_ids = vocabulary.encode("<think>I <see>é</think>\n\n</think>!")
    thoughts = ""
    answer: list[int] = []

    for start in range(0, len(token_ids), size):
        piece, rest = reader.push(token_ids[start : start + size])
        thoughts += piece
        answer += rest

    assert "I <see>é" == thoughts
    assert "</think>!" == vocabulary.decode(answer)
    assert len(token_ids) == reader.num_tokens + len(answer)
