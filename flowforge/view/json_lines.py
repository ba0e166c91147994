"""Objects out of the bytes of a stream of JSON lines, many lines at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue


class BadLineError(ValueError):
    """A line that is no JSON. objects: what stood before it in the same bytes."""

    def __init__(self, line: bytes, objects: list[JsonValue]) -> None:
        super().__init__(f"no JSON: {line[:80]!r}")
        self.line = line
        self.objects = objects


class JsonLines:
    """Keeps what came of a line until its end comes."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def take(self, chunk: bytes) -> list[JsonValue]:
        """The objects of the lines that end in these bytes; empty lines are left out.

        Raises BadLineError.
        """
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._begun.append(chunk)
            return []
        lines = [line for line in b"".join((*self._begun, head)).split(b"\n") if line.strip()]
        self._begun = [rest]
        try:
            # One call of the parser costs a third of one for each line.
            objects: list[JsonValue] = json.loads(b"[%b]" % b",".join(lines))
        except ValueError:
            return _one_by_one(lines)
        return objects if len(objects) == len(lines) else _one_by_one(lines)


def _one_by_one(lines: list[bytes]) -> list[JsonValue]:
    objects: list[JsonValue] = []
    for line in lines:
        try:
            objects.append(json.loads(line))
        except ValueError as error:
            raise BadLineError(line, objects) from error
    return objects
