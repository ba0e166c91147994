r"""What of a regular expression no token mask can keep, and what says it instead.

A mask is an automaton that reads forwards: what looks around, looks back or depends on the place in
a text is beyond it. Python reads such patterns, so they come with schemas and from habit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class RefusedPattern:
    """A pattern that no mask keeps. help: what to write instead."""

    reason: str
    help: str


@dataclass(frozen=True, slots=True)
class Unmaskable:
    """A construct that no mask keeps. what: what it does or is. instead: what to write for it."""

    text: str
    position: int
    what: str
    instead: str

    @property
    def reason(self) -> str:
        """What is in the way, as messages say it."""
        return f"{self.text!r} at position {self.position} {self.what}"


_AHEAD = "say what may stand there: (?:foo|bar)[a-z]*"
_NEGATIVE = "say what is allowed in place of what is not, with classes and alternatives: [^x]"
_BACK = "write out the texts that repeat: (?:aa|bb)"
_ANCHORED = "a pattern is anchored by '^' at its beginning and '$' at its end alone"
_CONSTRUCTS: tuple[tuple[str, str, str], ...] = (
    (r"\(\?=", "looks ahead", _AHEAD),
    (r"\(\?!", "looks ahead", _NEGATIVE),
    (r"\(\?<=", "looks behind", _AHEAD),
    (r"\(\?<!", "looks behind", _NEGATIVE),
    (r"\(\?P=\w*\)?|\\[1-9]\d?|\\k<\w*>?", "repeats what a group has matched", _BACK),
    (r"\(\?\(", "depends on a group", "write out both alternatives: (?:ab|c)"),
    (r"\(\?>", "is a group without a way back", "write a plain group: (?:…)"),
    (r"\(\?#", "is a comment", "leave it out"),
    (r"\(\?[a-z]*[aL]", "is a flag of Python's", "leave it out, and name classes: [0-9] for \\d"),
    (r"\\[bB]", "looks around", "write what stands beside the word: (?:^|[^a-z])word"),
    (r"\\Z", "is Python's end of a text", "write '$' at the end"),
    (r"\\N", "names a character", "write the character itself, or \\u and its number"),
    (r"\\0[0-7]*", "is an octal number", "write \\x and two hexadecimal digits"),
    (r"\{,\d+\}", "lacks its least count", "write {0,…}"),
)
_PLACE = re.compile("|".join(f"({form})" for form, _, _ in _CONSTRUCTS))
_CLASSES = r"name a category, as \p{L} and \p{Lu}, or a script, as \p{Greek}"
# Letters of a script, or of a category: masks know them, and Python does not.
_UNICODE_CLASS = re.compile(r"(\\\\)|\\[pP](?:\{[^{}]*\}|\w)")
# What stands for itself or within a class, and is passed over.
_PASSED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def unmaskable(pattern: str) -> Unmaskable | None:
    """The first construct that no mask keeps; None where there is none that is known."""
    position = 0
    while position < len(pattern):
        found = _PLACE.match(pattern, position)
        if found is not None:
            assert found.lastindex is not None
            _, what, instead = _CONSTRUCTS[found.lastindex - 1]
            return Unmaskable(found[0], position, what, instead)
        passed = _PASSED.match(pattern, position)
        position = position + 1 if passed is None else passed.end()
    return None


def classes_of(pattern: str) -> Iterator[Unmaskable]:
    r"""Its classes of Unicode, as `\p{L}`, each as what is to be said of it if no mask knows it."""
    for found in _UNICODE_CLASS.finditer(pattern):
        if found[1] is None:
            yield Unmaskable(found[0], found.start(), "is no class of Unicode", _CLASSES)


def for_python(pattern: str) -> str:
    r"""The pattern with `\w` for classes of Unicode, as `\p{L}`: as long, and Python reads it."""
    return _UNICODE_CLASS.sub(lambda found: found[1] or r"\w", pattern)


def what_no_mask_keeps(refused: str) -> Unmaskable | None:
    """What keeps a pattern from being masked that a mask has refused; None where nobody knows."""
    return unmaskable(refused) or _stray_anchor(refused)


def _stray_anchor(pattern: str) -> Unmaskable | None:
    # Masks take some of them, as in (^a|^b): it says something only of a pattern that was refused.
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if (char == "^" and position) or (char == "$" and position + 1 < len(pattern)):
            return Unmaskable(char, position, "stands within the pattern", _ANCHORED)
        passed = _PASSED.match(pattern, position)
        position = position + 1 if passed is None else passed.end()
    return None
