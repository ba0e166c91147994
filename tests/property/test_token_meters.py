"""What is cut to tokens has no more of them, and could not be longer by one character."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from flowforge.language.token_meter import EncodingMeter, WordMeter

TEXTS = st.text(st.sampled_from("ab c\n日"), max_size=80)
COUNTS = st.integers(0, 12)


def syllables(text: str) -> list[int]:
    """Tokens of up to three letters with the space before them; a wide character is three."""
    return [
        byte
        for piece in re.findall(r"\s?[a-c]{1,3}|\s|日", text)
        for byte in (range(3) if piece == "日" else [0])
    ]


@given(TEXTS, COUNTS)
def test_a_cut_text_is_a_beginning_of_at_most_so_many_tokens(text: str, count: int) -> None:
    for meter in (EncodingMeter(syllables), WordMeter()):
        cut = meter.cut_text(text, count)

        assert text.startswith(cut)
        assert meter.count_tokens(cut) <= count
        assert cut == text or meter.count_tokens(text[: len(cut) + 1]) > count


@given(TEXTS)
def test_a_text_that_is_short_enough_stays_whole(text: str) -> None:
    for meter in (EncodingMeter(syllables), WordMeter()):
        assert meter.cut_text(text, meter.count_tokens(text)) == text


def test_cutting_a_long_text_looks_at_little_more_than_it_keeps() -> None:
    num_chars = 0

    def encode(text: str) -> list[int]:
        nonlocal num_chars
        num_chars += len(text)
        return syllables(text)

    EncodingMeter(encode).cut_text("abc " * 1_000_000, 100)

    assert num_chars < 10_000
