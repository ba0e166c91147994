"""Whether the order in which `re` tries ways can matter at all for a regex.

Where at each place the next character tells which way to go, there is only one way, and the first
match is the longest. Most terminals are so, and need no automaton (one-unambiguous regexes:
Brüggemann-Klein and Wood).
"""

from __future__ import annotations

from itertools import permutations

from flowforge.grammars.lark.character_set import NOTHING, CharacterSet
from flowforge.grammars.lark.regex_tree import Branch, Chars, Look, Regex, Repeat, Sequence


def has_one_way(regex: Regex) -> bool:
    """Whether each text has at most one way through the regex; false also where that is unclear."""
    return _is_clear(regex, NOTHING)


def first_chars(regex: Regex) -> CharacterSet:
    """The characters a match can begin with; looks are taken to be fulfilled."""
    match regex:
        case Chars(chars):
            return chars
        case Sequence(parts):
            found = NOTHING
            for part in parts:
                found |= first_chars(part)
                if not may_be_empty(part):
                    break
            return found
        case Branch(parts):
            found = NOTHING
            for part in parts:
                found |= first_chars(part)
            return found
        case Repeat(part=part):
            return first_chars(part)
        case Look():
            return NOTHING


def may_be_empty(regex: Regex) -> bool:
    """Whether the empty text matches."""
    match regex:
        case Chars():
            return False
        case Sequence(parts):
            return all(map(may_be_empty, parts))
        case Branch(parts):
            return any(map(may_be_empty, parts))
        case Repeat(part, least):
            return least == 0 or may_be_empty(part)
        case Look():
            return True


def _is_clear(regex: Regex, follow: CharacterSet) -> bool:
    match regex:
        case Chars():
            return True
        case Look():
            return False
        case Sequence(parts):
            for part in reversed(parts):
                if not _is_clear(part, follow):
                    return False
                first = first_chars(part)
                follow = first | follow if may_be_empty(part) else first
            return True
        case Branch(parts) if _are_distinct_texts(parts):
            return True
        case Branch(parts):
            taken = follow if may_be_empty(regex) else NOTHING
            for part in parts:
                first = first_chars(part)
                if first & taken or may_be_empty(part) or not _is_clear(part, follow):
                    return False
                taken |= first
            return True
        case Repeat(part, least, most, is_lazy):
            first = first_chars(part)
            if is_lazy or may_be_empty(part) or (most != least and first & follow):
                return False
            return _is_clear(part, follow if most == 1 else follow | first)


def _are_distinct_texts(parts: tuple[Regex, ...]) -> bool:
    """Whether the parts are texts of which none begins another, so that at most one matches."""
    texts = [part.parts if isinstance(part, Sequence) else (part,) for part in parts]
    if not all(text and all(isinstance(one, Chars) for one in text) for text in texts):
        return False
    return not any(_may_begin(one, other) for one, other in permutations(texts, 2))


def _may_begin(one: tuple[Regex, ...], other: tuple[Regex, ...]) -> bool:
    if len(one) > len(other):
        return False
    return all(
        first_chars(mine) & first_chars(yours) for mine, yours in zip(one, other, strict=False)
    )
