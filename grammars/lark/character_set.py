"""Sets of Unicode characters, as a regex of Python sees them.

Surrogates are left out: no text that a model writes can hold one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
# Past these lie no word characters, digits or spaces, and no letters with two cases. Unicode may
# grow past them; a test looks.
_LAST_WORD = 0x3FFFF
_LAST_CASED = 0x1FFFF
# What `re` takes for equal besides: it knows that both stand for the same upper-case text.
_MORE_TWINS = {
    "\u0130": "i",
    "\u0131": "i",
    "\u0390": "\u1fd3",
    "\u1fd3": "\u1fd3",
    "\u03b0": "\u1fe3",
    "\u1fe3": "\u1fe3",
    "\ufb05": "\ufb06",
    "\ufb06": "\ufb06",
}


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """Code points as sorted ranges, both ends included, that neither touch nor overlap."""

    ranges: tuple[tuple[int, int], ...]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, code: int) -> bool:
        idx = bisect_right(self.ranges, (code, LAST + 1)) - 1
        return idx >= 0 and code <= self.ranges[idx][1]

    def __or__(self, other: CharacterSet) -> CharacterSet:
        return character_set([*self.ranges, *other.ranges])

    def __and__(self, other: CharacterSet) -> CharacterSet:
        found: list[tuple[int, int]] = []
        mine, yours = 0, 0
        while mine < len(self.ranges) and yours < len(other.ranges):
            one, two = self.ranges[mine], other.ranges[yours]
            start, end = max(one[0], two[0]), min(one[1], two[1])
            if start <= end:
                found.append((start, end))
            if one[1] < two[1]:
                mine += 1
            else:
                yours += 1
        return CharacterSet(tuple(found))

    def __sub__(self, other: CharacterSet) -> CharacterSet:
        return self & ~other

    def __invert__(self) -> CharacterSet:
        gaps: list[tuple[int, int]] = []
        start = 0
        for low, high in self.ranges:
            gaps.append((start, low - 1))
            start = high + 1
        gaps.append((start, LAST))
        return character_set(gap for gap in gaps if gap[0] <= gap[1])

    def sample(self) -> int:
        """A code point of the set, a readable one where there is one."""
        for code in _READABLE:
            if code in self:
                return code
        return self.ranges[0][0]


_READABLE = tuple(map(ord, "ax0Az19_-+ .,;:'\"()[]{}<>=*/\\"))


def character_set(ranges: Iterable[tuple[int, int]]) -> CharacterSet:
    """The set of these ranges, in any order; surrogates are dropped."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return CharacterSet(tuple(joined))


def single(code: int) -> CharacterSet:
    """The set of one code point."""
    return character_set([(code, code)])


@lru_cache(maxsize=16)
def class_of_escape(escape: str, is_ascii: bool) -> CharacterSet:
    r"""The characters that Python's `re` matches with \d, \s or \w."""
    flags = re.ASCII if is_ascii else re.NOFLAG
    return character_set(
        (found.start(), found.end() - 1) for found in re.finditer(f"{escape}+", _all_text(), flags)
    )


def fold_case(chars: CharacterSet, is_ascii: bool) -> CharacterSet:
    """What matches the set where case is ignored."""
    twins = _twins()
    size = sum(high - low + 1 for low, high in chars.ranges)
    if size < len(twins):
        cased = [code for low, high in chars.ranges for code in range(low, high + 1)]
    else:
        cased = [code for code in twins if code in chars]
    more = [
        (twin, twin)
        for code in cased
        for twin in twins.get(code, ())
        if not is_ascii or (code < 128 and twin < 128)
    ]
    return character_set([*chars.ranges, *more]) if more else chars


@lru_cache(maxsize=1)
def _all_text() -> str:
    return "".join(map(chr, range(_LAST_WORD + 1)))


@lru_cache(maxsize=1)
def _twins() -> dict[int, tuple[int, ...]]:
    """Code points that differ only in case, as `re.IGNORECASE` has it."""
    groups: dict[str, set[int]] = {}
    for code in range(_LAST_CASED + 1):
        char = chr(code)
        lower, upper = char.lower(), char.upper()
        if lower != char or upper != char:
            # Through upper case, because two lower-case letters may share one: s and long s.
            key = _MORE_TWINS.get(char) or (upper if len(upper) == 1 else char).lower()
            groups.setdefault(key, set()).add(code)
    return {
        code: tuple(sorted(group - {code}))
        for group in groups.values()
        if len(group) > 1
        for code in group
    }


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high
        # Between the two lie surrogates only.


def partition(sets: Iterable[CharacterSet]) -> list[CharacterSet]:
    """The finest pieces that the sets cut each other into, without what none of them holds."""
    pieces: list[CharacterSet] = []
    for chars in sorted(sets, key=lambda one: one.ranges):
        rest = chars
        cut: list[CharacterSet] = []
        for piece in pieces:
            common = piece & rest
            if not common:
                cut.append(piece)
                continue
            cut.append(common)
            if left := piece - common:
                cut.append(left)
            rest = rest - common
        pieces = [*cut, rest] if rest else cut
    return pieces


NOTHING = CharacterSet(())
EVERYTHING = character_set([(0, LAST)])
NEWLINE = single(0x0A)
