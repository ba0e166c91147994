"""The values in a rendered prompt: found again, kept apart from scaffolding, made harmless.

Pure functions over texts. A *hole* is where a value stands; holes are rendered as a number between
two markers, a character that occurs nowhere else.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, cast

from flowforge.engine.text.messages import bad_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))


def map_texts(value: object, change: Callable[[str], str]) -> object:
    """A copy of a JSON-like value with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return {change(key): map_texts(inner, change) for key, inner in pairs}
    if isinstance(value, list | tuple):
        return [map_texts(inner, change) for inner in cast("list[object]", value)]
    return value


def map_values(value: object, change: Callable[[str], str]) -> object:
    """As `map_texts`, but keys stay."""
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return {key: map_values(inner, change) for key, inner in pairs}
    if isinstance(value, list | tuple):
        return [map_values(inner, change) for inner in cast("list[object]", value)]
    return change(value) if isinstance(value, str) else value


def texts_of(value: object) -> str:
    """Every text in a JSON-like value, joined: to look for characters in."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    map_texts(value, note)
    return "".join(found)


def hole(marker: str, number: int) -> str:
    """What stands for value `number` in a marked rendering."""
    return f"{marker}{number}{marker}"


def split_at_holes(marker: str, text: str) -> tuple[list[str], list[int]]:
    """Scaffolding, one piece more than holes, and the holes' numbers in order."""
    parts = re.split(f"{marker}([0-9]+){marker}", text)
    return parts[::2], [int(number) for number in parts[1::2]]


def align(pieces: Sequence[str], values: Sequence[str], text: str) -> list[str] | None:
    """The forms that `values` have in `text`, between `pieces`; None where they do not fit.

    A template may print a value as it is, stripped, or as JSON.
    """
    if not text.startswith(pieces[0]):
        return None
    place = len(pieces[0])
    found: list[str] = []
    for value, piece in zip(values, pieces[1:], strict=True):
        form = next((form for form in _forms(value) if text.startswith(form + piece, place)), None)
        if form is None:
            return None
        found.append(form)
        place += len(form) + len(piece)
    return found if place == len(text) else None


def interleave(pieces: Sequence[str], values: Sequence[str]) -> str:
    """Pieces and values in turn."""
    pairs = itertools.zip_longest(pieces, values, fillvalue="")
    return "".join(itertools.chain.from_iterable(pairs))


def alternation(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern for any of these texts, the longest first."""
    longest_first = sorted(texts, key=len, reverse=True)
    # The empty look-ahead never matches: a vocabulary without control tokens has none to find.
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def unused_characters(texts: Sequence[str]) -> Iterator[str]:
    """Private-use characters that occur in none of the texts, in order: no chance is involved."""
    used = set[str]().union(*texts)
    return (char for char in map(chr, _PRIVATE_USE) if char not in used)


def unused_marker(texts: Sequence[str]) -> str:
    """A character that occurs in none of the texts. Raises EngineError EN307 if there is none."""
    char = next(unused_characters(texts), None)
    if char is None:
        raise bad_message("the messages hold every private-use character, expected one unused")
    return char


def _forms(value: str) -> Iterator[str]:
    yield value
    yield value.strip()
    yield json.dumps(value, ensure_ascii=False)[1:-1]
