"""Texts of models on a terminal: any text, any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flowforge.tui.panels import detail_lines
from flowforge.view.printable import (
    first_cells,
    folded,
    last_cells,
    one_line,
    printable,
    without_loose_joiners,
)
from flowforge.view.step_detail import Piece

texts = st.text(
    st.characters()
    | st.sampled_from("\x1b\x9b\x07\r\n\t 漢字👩\u200d💻é\u0301\u202e\u2028❤\ufe0f"),
    max_size=80,
)


@given(texts)
def test_nothing_controls_the_terminal(text: str) -> None:
    shown = printable(text)

    assert all(char.isprintable() or char in "\n\u200c\u200d" for char in shown)
    assert text.count("\n") == shown.count("\n")


@given(texts, st.integers(2, 60))
def test_folded_lines_fit_and_lose_only_spaces(text: str, width: int) -> None:
    shown = printable(text)
    lines = [*folded(shown, width)]

    assert all(cell_len(line) <= width for line in lines)
    assert shown.replace(" ", "").replace("\n", "") == "".join(lines).replace(" ", "")


@given(st.lists(texts, max_size=8), st.integers(2, 20))
def test_a_text_that_grows_is_folded_as_the_whole_is(pieces: list[str], width: int) -> None:
    rows = [""]
    for piece in pieces:
        rows += folded(rows.pop() + printable(piece), width)

    assert [*folded(printable("".join(pieces)), width)] == rows


def test_one_long_line_is_folded_in_one_go() -> None:
    # Looking at all the rest for every row, as was done, takes minutes.
    assert 10_000 == sum(1 for _ in folded("漢" * 200_000, 40))
    assert 10_000 == len(detail_lines([Piece("output", "漢" * 200_000)], 40))


@given(texts, st.integers(0, 60))
def test_ends_and_beginnings_fit_on_a_line(text: str, width: int) -> None:
    assert cell_len(last_cells(text, width)) <= width
    assert cell_len(first_cells(text, width)) <= width
    assert "\n" not in last_cells(text, width) + first_cells(text, width)


def test_an_emoji_is_as_wide_as_every_terminal_has_it() -> None:
    # tmux 3.3 has one cell for a heart with a colour, two more for a skin; others do not.
    given = "❤\ufe0f 👍\U0001f3fd 1\ufe0f\u20e3 🏳\ufe0f\u200d🌈"

    assert "❤ 👍 1\u20e3 🏳\u200d🌈" == printable(given)


def test_a_joiner_joins_neither_a_space_nor_a_border() -> None:
    family = "👩\u200d👩\u200d👧"

    assert "👩 a 👧" == without_loose_joiners("👩\u200d a \u200d👧\u200d")
    assert family == one_line(f"{family}\u200d\n")
    assert "👩…" == first_cells("👩\u200d👩 and more", 3)
