"""The parts of a JSON array or object, each as soon as its text is final."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic_core import from_json

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue

# An escape counts as one, so that no quote in it ends a string.
_MARK = re.compile(r'\\.?|["\[\]{},:]', re.DOTALL)


_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class JsonPart:
    """An element of an array, with its index, or a value of an object, with its key."""

    key: int | str
    value: JsonValue


class JsonParts:
    """Reads one JSON text. Where it is cut into pushes makes no difference.

    Texts that are no array or object have no parts. Of a text that is no JSON there are those that
    were read before that showed; what is wrong with it is for its judge to say.
    """

    def __init__(self) -> None:
        self._kind: Literal["array", "object"] | None = None
        self._depth = 0
        self._is_in_string = False
        self._has_half_escape = False
        self._is_over = False
        self._key: str | None = None
        self._num_elements = 0
        # Of the element, key or value that is open.
        self._open: list[str] = []

    def push(self, text: str) -> list[JsonPart]:
        """Take in text; the parts that are final by it."""
        parts: list[JsonPart] = []
        if self._kind is None:
            text = text.lstrip(_BLANKS)
            self._is_over = self._is_over or text[:1] not in ("", "[", "{")
        start = scanned = 0
        if self._has_half_escape and text:
            scanned, self._has_half_escape = 1, False
        for hit in _MARK.finditer(text, scanned):
            if self._is_over:
                break
            mark, place = hit[0], hit.start()
            if mark[0] == "\\":
                self._has_half_escape = len(mark) == 1
            elif mark == '"':
                self._is_in_string = not self._is_in_string
            elif not self._is_in_string and self._is_border(mark):
                self._open.append(text[start:place])
                start = hit.end()
                self._close(mark, parts)
        if self._depth and not self._is_over:
            self._open.append(text[start:])
        return parts

    def _is_border(self, mark: str) -> bool:
        """Take a bracket, comma or colon in; whether something of the outermost level ends here."""
        if mark in "[{":
            self._depth += 1
            if self._depth == 1:
                self._kind = "array" if mark == "[" else "object"
            return self._depth == 1
        if mark in "]}":
            self._depth -= 1
            return self._depth <= 0
        return self._depth == 1

    def _close(self, mark: str, parts: list[JsonPart]) -> None:
        text = "".join(self._open).strip()
        self._open.clear()
        if mark in "[{":
            return
        try:
            if mark == ":" and self._kind == "object" and self._key is None:
                self._key = _text_of(from_json(text))
            elif text or self._key is not None:
                parts.append(self._part(from_json(text, allow_inf_nan=False)))
        except ValueError:
            self._is_over = True
        self._is_over = self._is_over or self._depth <= 0

    def _part(self, value: JsonValue) -> JsonPart:
        if self._kind == "object":
            if self._key is None:
                raise ValueError("a value without its key")
            key, self._key = self._key, None
            return JsonPart(key, value)
        self._num_elements += 1
        return JsonPart(self._num_elements - 1, value)


def _text_of(key: JsonValue) -> str:
    if not isinstance(key, str):
        raise ValueError("a key that is no text")
    return key
