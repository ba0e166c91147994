"""Half characters and half stop strings wait; what was certain is never taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.engine.text.detokenizer import IncrementalDetokenizer
from flowforge.engine.text.stopping import StopStrings
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.model

FAMILY = [10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117]


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


def stream(
    tokenizer: Tokenizer, token_ids: Sequence[int], stop: Sequence[str] = ()
) -> tuple[list[str], IncrementalDetokenizer]:
    detokenizer = IncrementalDetokenizer(tokenizer, stop)
    chunks = [detokenizer.push([token_id]) for token_id in token_ids]
    return [*chunks, detokenizer.finish()], detokenizer


def test_characters_appear_when_their_last_token_does(tokenizer: Tokenizer) -> None:
    chunks, _ = stream(tokenizer, FAMILY)

    assert [3, 5, 8, 10, 13] == [idx for idx, chunk in enumerate(chunks, start=1) if chunk]
    assert "".join(chunks) == "👩‍👩‍👧"


def test_a_token_may_end_one_character_and_the_next_be_whole(tokenizer: Tokenizer) -> None:
    chunks, _ = stream(tokenizer, [23274, 115, 40993])

    assert ["", "日", "本", ""] == chunks


def test_an_output_that_ends_inside_a_character_ends_with_one_replacement(
    tokenizer: Tokenizer,
) -> None:
    chunks, _ = stream(tokenizer, [10813, 235, 232, 10813, 235, 232, 10813])

    assert "".join(chunks) == "👎👎\ufffd"


def test_the_start_of_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    chunks, detokenizer = stream(tokenizer, [35542, 33203, 23960, 57, 58, 59], ["DEFGHIJ"])

    assert ["ABC", "", "", "", "", "", ""] == chunks
    assert detokenizer.stopped
    assert detokenizer.num_tokens == 5


def test_what_was_held_back_for_a_stop_that_never_came_is_text(tokenizer: Tokenizer) -> None:
    chunks, detokenizer = stream(tokenizer, tokenizer.encode("abab"), ["abac"])

    assert "".join(chunks) == "abab"
    assert not detokenizer.stopped


def test_of_stop_strings_that_end_together_the_longest_cuts(tokenizer: Tokenizer) -> None:
    chunks, detokenizer = stream(tokenizer, tokenizer.encode("cab"), ["b", "ab"])

    assert "".join(chunks) == "c"
    assert detokenizer.stopped_by == "ab"


def test_a_fork_and_its_original_go_on_independently(tokenizer: Tokenizer) -> None:
    original = IncrementalDetokenizer(tokenizer, ["stop"])
    original.push(FAMILY[:2])
    fork = original.fork()

    assert original.push(FAMILY[2:3]) == "👩"
    assert fork.push([232]) == "👎"
    assert fork.push(tokenizer.encode("stop")) == ""
    assert fork.stopped
    assert not original.stopped


def test_an_empty_stop_string_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(EngineError) as caught:
        IncrementalDetokenizer(tokenizer, ["a", ""])

    assert caught.value.code == "EN306"


def test_a_control_token_shows_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    token_ids = [*tokenizer.encode("a"), 1, *tokenizer.encode("b"), 2]
    detokenizer = IncrementalDetokenizer(tokenizer, shown_ids=frozenset({1}))

    assert detokenizer.push(token_ids) + detokenizer.finish() == "a<|im_start|>b"
    assert tokenizer.decode(token_ids) == "ab"


@pytest.mark.parametrize("strings", [["zzz", "night trains"], "night trains"])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_condition_is_met_by_a_string_wherever_tokens_end(
    tokenizer: Tokenizer, strings: list[str] | str, size: int
) -> None:
    before, text = tokenizer.encode("I like nigh"), tokenizer.encode("t trains at night")
    stop = StopStrings(tokenizer, strings)

    assert not stop.is_met_by(before)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert any(stop.is_met_by(piece) for piece in pieces)


def test_one_stop_string_is_not_taken_for_its_characters(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, "END")

    assert "E, N, D: " == detokenizer.push(tokenizer.encode("E, N, D: END")) + detokenizer.finish()
