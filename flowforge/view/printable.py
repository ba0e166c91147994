"""Text of models and tools on a terminal: nothing in it moves the cursor, colours or rings.

Control codes become visible marks of one cell; so do the marks that turn the direction of text, by
which a line can be made to read as another one.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Iterator

TAB_WIDTH = 4
MAX_LINE_CHARS = 20_000
"""Longer lines are cut where they are shown on one line."""

JOINERS = "\u200c\u200d"
_KEPT_FORMATS = {*JOINERS}  # scripts and emoji need them
_LOOKS = {*"\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"}
"""The look of the emoji before depends on them, and terminals differ in how wide it is then."""

_LOOSE_JOINERS = re.compile(rf"(?<!\S)[{JOINERS}]+|[{JOINERS}]+(?!\S)")


def printable(text: str) -> str:
    """The text with line feeds kept, tabs as spaces and everything that controls as marks.

    What gives emoji a colour or a skin is left out.
    """
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_MARKS)


def without_loose_joiners(text: str) -> str:
    """A whole text, or a row of one, without joiners at the ends of its words.

    Terminals join what stands behind them, a space or a border, and the rest of the row moves.
    """
    return text if text.isascii() else _LOOSE_JOINERS.sub("", text)


def one_line(text: str) -> str:
    """The text on one line, runs of white space as one space."""
    return without_loose_joiners(printable(" ".join(text[:MAX_LINE_CHARS].split())))


def last_cells(text: str, width: int) -> str:
    """The end of a text on one line, at most `width` terminal cells wide."""
    # A character takes a byte of cells at the least, so older ones cannot be in sight.
    flat = one_line(text[-4 * max(0, width) - 64 :])[-max(0, width) :] if width > 0 else ""
    while cell_len(flat) > width:
        flat = flat[1:]
    return flat


def first_cells(text: str, width: int) -> str:
    """The beginning of a text on one line, with a mark where it is cut."""
    flat = one_line(text[: 4 * max(1, width) + 64])
    if cell_len(flat) <= width:
        return flat
    while flat and cell_len(flat) > width - 1:
        flat = flat[: min(len(flat) - 1, max(0, width - 1))]
    return f"{flat.rstrip(JOINERS)}…" if width > 0 else ""


def folded(text: str, width: int) -> Iterator[str]:
    """The lines of a printable text, folded at `width` cells, at spaces where there are some.

    Nothing is lost but the spaces at which a line ends. Where a row ends depends on no more than
    `seen_chars(width)` characters from its beginning on.
    """
    width = max(2, width)
    most = seen_chars(width)
    for line in text.split("\n"):
        at = 0
        while len(line) - at >= most or cell_len(line[at:]) > width:
            num_fitting = _num_fitting(line[at : at + width], width)
            end = line.rfind(" ", at, at + num_fitting + 1) + 1
            if end <= at or not line[at:end].strip():
                end = at + num_fitting
            yield line[at:end].rstrip()
            at = end
        yield line[at:]


def seen_chars(width: int) -> int:
    """How far a line is looked at for one row of it: many characters may share a cell."""
    return 4 * width + 64


def _num_fitting(head: str, width: int) -> int:
    """How many of `width` characters fit into `width` cells; at least one."""
    if head.isascii():
        return len(head)
    used = 0
    for idx, char in enumerate(head):
        used += _cells(char)
        if used > width:
            head = head[:idx]
            break
    # Characters that are joined may be wider than they are one by one.
    while len(head) > 1 and cell_len(head) > width:
        head = head[:-1]
    return max(1, len(head))


@lru_cache(maxsize=4096)
def _cells(char: str) -> int:
    return cell_len(char)


class _Marks(dict[int, "int | str"]):
    """What stands for a character; made as characters are met."""

    def __missing__(self, code: int) -> int | str:
        mark = self[code] = _mark(chr(code))
        return mark


def _mark(char: str) -> int | str:
    if char in _LOOKS:
        return ""
    if char == "\n" or char.isprintable() or char in _KEPT_FORMATS:
        return char
    if char == "\t":
        return " " * TAB_WIDTH
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    if code == 0x7F:
        return "␡"
    # Spaces of other widths and ends of lines of other kinds read as one space.
    return " " if unicodedata.category(char).startswith("Z") else "�"


_MARKS = _Marks()
