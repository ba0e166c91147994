"""The text of a workflow file, with places counted in characters."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from flowforge.errors import Location


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start…end of a source, end not included."""

    start: int
    end: int


class Source:
    """A file's name and text. Lines end with LF, CRLF or CR, as YAML's do."""

    __slots__ = ("_line_starts", "file", "text")

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._line_starts = [0, *(_line_ends(text))]

    def line_idx(self, offset: int) -> int:
        """The line an offset lies on, counted from 0."""
        return bisect.bisect_right(self._line_starts, offset) - 1

    def line_start(self, line_idx: int) -> int:
        """The offset of a line's first character."""
        return self._line_starts[line_idx]

    def line(self, line_idx: int) -> str:
        """A line's text without its end."""
        start = self._line_starts[line_idx]
        is_last = line_idx + 1 == len(self._line_starts)
        end = len(self.text) if is_last else self._line_starts[line_idx + 1]
        return self.text[start:end].rstrip("\r\n")

    def location(self, offset: int) -> Location:
        """Line and column from 1."""
        line_idx = self.line_idx(offset)
        return Location(self.file, line_idx + 1, offset - self._line_starts[line_idx] + 1)


def _line_ends(text: str) -> list[int]:
    ends: list[int] = []
    position = 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        # splitlines also breaks at characters that YAML 1.2 counts as ordinary ones.
        if line.endswith(("\n", "\r")):
            ends.append(position)
    return ends
