"""What a docstring says of a dataclass, and of each of its fields.

Docstrings of the project tell of fields as "name: meaning." or "name, other: meaning." behind the
first line; a meaning ends where the next name stands.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Told:
    """summary: what is said of the whole. fields: the meaning of each that is told of."""

    summary: str
    fields: Mapping[str, str]


def told_of(owner: type) -> Told:
    """What the docstring of a dataclass says."""
    names = [field.name for field in fields(owner)]
    return split_docstring(inspect.getdoc(owner) or "", names)


def split_docstring(text: str, names: Iterable[str]) -> Told:
    """A docstring as what it says of the whole, and of each name."""
    known = "|".join(map(re.escape, names))
    # Where a sentence begins, and nowhere else, a name is one that is told of.
    start = re.compile(rf"(?:(?<=[.;]\s)|(?<=\n)|^)((?:{known})(?:,\s+(?:{known}))*):\s+")
    pieces = start.split(text) if known else [text]
    told: dict[str, str] = {}
    for named, meaning in zip(pieces[1::2], pieces[2::2], strict=True):
        for name in re.split(r",\s+", named):
            told[name] = _sentence(meaning)
    return Told(pieces[0].strip(), told)


def _sentence(text: str) -> str:
    words = " ".join(text.split()).rstrip(";")
    return words[:1].upper() + words[1:]
