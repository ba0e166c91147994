"""Streamed text is the whole text, wherever the tokens are cut, whatever they are."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.detokenizer import IncrementalDetokenizer
from flowforge.engine.text.messages import Message
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.model

TOKEN_IDS = st.lists(st.integers(min_value=0, max_value=49_300), max_size=30)
# The model's vocabulary has no token for six control characters, nor for the bytes 0xF1 and 0xF2.
WRITABLE = st.characters(
    codec="utf-8", max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d"
)
HOSTILE = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", "<|", "\ue000", "\U0010fffd", "1", "\n", "é", "👩"]
    )
    | st.text(WRITABLE, max_size=4)
).map("".join)


@pytest.fixture(scope="session")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.fixture(scope="session")
def template(default_model_dir: Path, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_directory(default_model_dir, tokenizer)


@given(token_ids=TOKEN_IDS, cuts=st.lists(st.integers(min_value=0, max_value=30)))
def test_the_pieces_joined_are_the_whole_text(
    tokenizer: Tokenizer, token_ids: list[int], cuts: list[int]
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)

    pieces = [detokenizer.push(part) for part in cut(token_ids, cuts)]

    assert tokenizer.decode(token_ids) == "".join(pieces) + detokenizer.finish()


@given(
    text=st.text(alphabet="abc👎", max_size=20),
    stop=st.lists(st.text(alphabet="abc👎", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(min_value=0, max_value=40)),
)
def test_a_stop_string_cuts_at_the_same_place_for_every_split(
    tokenizer: Tokenizer, text: str, stop: list[str], cuts: list[int]
) -> None:
    token_ids = tokenizer.encode(text)
    detokenizer = IncrementalDetokenizer(tokenizer, stop)

    streamed = "".join(detokenizer.push(part) for part in cut(token_ids, cuts))

    ends = [text.find(each) + len(each) for each in stop if each in text]
    read = text[: min(ends, default=len(text))]
    longest = max((len(each) for each in stop if read.endswith(each)), default=0)
    expected = read[: len(read) - longest] if ends else text
    assert expected == streamed + detokenizer.finish()
    assert bool(ends) == detokenizer.stopped


@given(text=HOSTILE)
def test_content_comes_back_as_it_was_and_holds_no_control_token(
    tokenizer: Tokenizer, text: str
) -> None:
    token_ids = tokenizer.encode(text)

    assert text == tokenizer.decode(token_ids)
    assert not tokenizer.special_ids.intersection(token_ids)


@given(texts=st.lists(HOSTILE, min_size=1, max_size=4))
def test_a_prompt_has_the_control_tokens_of_its_turns_and_no_more(
    template: ChatTemplate, texts: list[str]
) -> None:
    messages = [Message("system", "S"), *(Message("user", text) for text in texts)]

    token_ids = template.render(messages)

    assert (len(messages) + 1, len(messages)) == (token_ids.count(1), token_ids.count(2))


@given(first=HOSTILE, generated=TOKEN_IDS.filter(bool), later=HOSTILE)
def test_a_continuation_starts_by_closing_the_turn_exactly_once(
    template: ChatTemplate, first: str, generated: list[int], later: str
) -> None:
    history = [Message("user", first), Message("assistant", "")]

    rest = template.continuation(history, [Message("user", later)], last_token=generated[-1])

    closed = [*generated, *rest][len(generated) - (generated[-1] == 2) :]
    whole = template.render([*history, Message("user", later)])
    assert whole == template.render(history[:1]) + closed


def cut(token_ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    borders = [0, *sorted(min(place, len(token_ids)) for place in cuts), len(token_ids)]
    return [token_ids[start:end] for start, end in pairwise(borders)]
