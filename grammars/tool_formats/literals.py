"""Literals of a format's syntax: written, found in a text that is still coming, and read."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.tool_formats.description import LiteralSyntax

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BARE_KEY = re.compile(r"[^:=\s{}\[\](),\"]+")
_IN_SCALAR = re.compile(r"[-+.\w]*")


class NoLiteral(Exception):
    """A text is no literal of its syntax; the text of this says where."""


def write_literal(value: JsonValue, syntax: LiteralSyntax) -> str:
    """A value as the syntax writes it."""
    match value:
        case None:
            return syntax.null
        case bool():
            return syntax.true if value else syntax.false
        case int() | float():
            return json.dumps(value)
        case str():
            return write_string(value, syntax)
        case list():
            inside = syntax.item_separator.join(write_literal(one, syntax) for one in value)
            return f"[{inside}]"
        case dict():
            pairs = (
                f"{_key(name, syntax.quotes_keys)}{syntax.inner_pair_separator}"
                f"{write_literal(one, syntax)}"
                for name, one in value.items()
            )
            return "{" + syntax.item_separator.join(pairs) + "}"


def write_string(text: str, syntax: LiteralSyntax) -> str:
    """A text as the syntax writes it."""
    if syntax.escapes:
        return json.dumps(text, ensure_ascii=False)
    return f"{syntax.string_open}{text}{syntax.string_close}"


def end_of_literal(text: str, start: int, syntax: LiteralSyntax) -> int | None:
    """Where the literal that begins at `start` ends; None while more of it may come.

    A number or word ends only with what follows it.
    """
    depth, idx = 0, start
    while idx < len(text):
        if text.startswith(syntax.string_open, idx):
            end = _end_of_string(text, idx, syntax)
            if end is None:
                return None
            idx = end
        elif syntax.string_open.startswith(text[idx:]):
            return None
        elif text[idx] in "[{":
            depth, idx = depth + 1, idx + 1
        elif text[idx] in "]}":
            depth, idx = depth - 1, idx + 1
        elif depth:
            idx += 1
            continue
        else:
            hit = _IN_SCALAR.match(text, idx)
            assert hit is not None
            if hit.end() == idx:
                raise NoLiteral(f"at character {idx}: {text[idx : idx + 20]!r}")
            return hit.end() if hit.end() < len(text) else None
        if depth == 0:
            return idx
    return None


def read_literal(text: str, syntax: LiteralSyntax) -> JsonValue:
    """The value of a whole literal. Raises NoLiteral."""
    if syntax.is_json:
        try:
            return cast("JsonValue", json.loads(text))
        except ValueError as error:
            raise NoLiteral(str(error)) from error
    reader = _Reader(text, syntax)
    value = reader.value()
    reader.require_end()
    return value


def _end_of_string(text: str, start: int, syntax: LiteralSyntax) -> int | None:
    idx = start + len(syntax.string_open)
    if not syntax.escapes:
        found = text.find(syntax.string_close, idx)
        return None if found < 0 else found + len(syntax.string_close)
    while idx < len(text):
        if text[idx] == '"':
            return idx + 1
        idx += 2 if text[idx] == "\\" else 1
    return None


def _key(name: str, is_quoted: bool) -> str:
    return json.dumps(name, ensure_ascii=False) if is_quoted else name


class _Reader:
    """Reads one literal that is known to be whole."""

    def __init__(self, text: str, syntax: LiteralSyntax) -> None:
        self._text = text
        self._syntax = syntax
        self._idx = 0
        self._words: dict[str, JsonValue] = {
            syntax.true: True,
            syntax.false: False,
            syntax.null: None,
        }

    def value(self) -> JsonValue:
        """The value that begins here."""
        syntax = self._syntax
        if self._text.startswith(syntax.string_open, self._idx):
            return self._string()
        if self._takes("["):
            items: list[JsonValue] = []
            while not self._takes("]"):
                items.append(self.value())
                self._takes(syntax.item_separator)
            return items
        if self._takes("{"):
            pairs: dict[str, JsonValue] = {}
            while not self._takes("}"):
                key = self._key()
                pairs[key] = self.value()
                self._takes(syntax.item_separator)
            return pairs
        for word, meaning in self._words.items():
            if self._takes(word):
                return meaning
        number = _NUMBER.match(self._text, self._idx)
        if number is None:
            raise self._fault()
        self._idx = number.end()
        return cast("JsonValue", json.loads(number[0]))

    def require_end(self) -> None:
        """Raises NoLiteral when something follows."""
        if self._idx < len(self._text):
            raise self._fault()

    def _string(self) -> str:
        syntax, start = self._syntax, self._idx
        end = _end_of_string(self._text, start, syntax)
        if end is None:
            raise self._fault()
        self._idx = end
        if syntax.escapes:
            try:
                return str(json.loads(self._text[start:end]))
            except ValueError as error:
                raise NoLiteral(str(error)) from error
        return self._text[start + len(syntax.string_open) : end - len(syntax.string_close)]

    def _key(self) -> str:
        if self._syntax.quotes_keys:
            key = self._string()
        else:
            hit = _BARE_KEY.match(self._text, self._idx)
            if hit is None:
                raise self._fault()
            key, self._idx = hit[0], hit.end()
        if not self._takes(self._syntax.inner_pair_separator):
            raise self._fault()
        return key

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._idx)
        if found:
            self._idx += len(text)
        return found

    def _fault(self) -> NoLiteral:
        return NoLiteral(f"at character {self._idx}: {self._text[self._idx : self._idx + 20]!r}")
