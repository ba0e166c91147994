"""The syntax tree of a Python regex, as far as an automaton can follow it.

Python's own regex parser reads the text, so that what it means is what `re` means.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flowforge.grammars.lark.character_set import (
    EVERYTHING,
    NEWLINE,
    NOTHING,
    CharacterSet,
    character_set,
    class_of_escape,
    fold_case,
    single,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Unsupported(Exception):
    """A construct that no automaton can follow. marker: how it is written, to find its place."""

    def __init__(self, reason: str, marker: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.marker = marker


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharacterSet


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other; the empty text where there is none."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """One of the parts, earlier ones first."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part again and again. most: None is without end. is_lazy: as few as will do, first."""

    part: Regex
    least: int
    most: int | None
    is_lazy: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A condition on what comes after this place, or stands before it; takes no text."""

    part: Regex
    direction: Literal["ahead", "behind"]
    is_negative: bool
    marker: str


Regex: TypeAlias = Chars | Sequence | Branch | Repeat | Look

EMPTY = Sequence(())
_ESCAPES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def parse_regex(pattern: str, flags: int = 0) -> Regex:
    """Read a regex that `re` compiles.

    Raises Unsupported for back-references, atomic groups, possessive repeats and conditions.
    """
    with warnings.catch_warnings():
        # Lark compiles the pattern as well, and is the one to warn.
        warnings.simplefilter("ignore")
        parsed = _python_parser().parse(pattern, flags)
    return _sequence(parsed, parsed.state.flags | flags)


def _python_parser() -> Any:
    # Behind a name, because typing stubs do not know it: Python has no public parser of regexes.
    return vars(re)["_parser"]


def sequence(parts: Iterable[Regex]) -> Regex:
    """The parts in a row, flat."""
    flat: list[Regex] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Sequence) else (part,))
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def walk(regex: Regex) -> Iterator[Regex]:
    """The regex and all its parts."""
    yield regex
    match regex:
        case Sequence(parts) | Branch(parts):
            for part in parts:
                yield from walk(part)
        case Repeat(part=part) | Look(part=part):
            yield from walk(part)
        case Chars():
            pass


def _sequence(nodes: Iterable[tuple[Any, Any]], flags: int) -> Regex:
    """The parser's nodes as ours. flags go along, as groups change them."""
    return sequence([_node(str(kind), value, flags) for kind, value in nodes])


def _node(kind: str, value: Any, flags: int) -> Regex:
    match kind:
        case "LITERAL":
            return Chars(_folded(single(value), flags))
        case "NOT_LITERAL":
            return Chars(~_folded(single(value), flags))
        case "ANY":
            return Chars(EVERYTHING if flags & re.DOTALL else ~NEWLINE)
        case "IN":
            return Chars(_class(value, flags))
        case "BRANCH":
            return Branch(tuple(_sequence(part, flags) for part in value[1]))
        case "SUBPATTERN":
            _, added, removed, inner = value
            return _sequence(inner, (flags | added) & ~removed)
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeat(value, flags, is_lazy=kind == "MIN_REPEAT")
        case "ASSERT" | "ASSERT_NOT":
            return _look(value, flags, is_negative=kind == "ASSERT_NOT")
        case "AT":
            return _anchor(str(value), flags)
        case _:
            raise _unsupported(kind, value)


def _repeat(value: Any, flags: int, *, is_lazy: bool) -> Regex:
    least, most, inner = value
    bound = None if str(most) == "MAXREPEAT" else int(most)
    return Repeat(_sequence(inner, flags), int(least), bound, is_lazy)


def _look(value: Any, flags: int, *, is_negative: bool) -> Regex:
    direction, inner = value
    is_ahead = direction == 1
    marker = f"(?{'' if is_ahead else '<'}{'!' if is_negative else '='}"
    part = _sequence(inner, flags)
    return Look(part, "ahead" if is_ahead else "behind", is_negative, marker)


def _unsupported(kind: str, value: Any) -> Unsupported:
    match kind:
        case "GROUPREF":
            return Unsupported("a back-reference needs to remember text", f"\\{value}")
        case "GROUPREF_EXISTS":
            return Unsupported("a condition on a group needs to remember text", "(?(")
        case "ATOMIC_GROUP":
            return Unsupported("an atomic group gives up matches that others would find", "(?>")
        case "POSSESSIVE_REPEAT":
            return Unsupported("a possessive repeat gives up matches that others would find", "+")
        case _:
            return Unsupported(f"{kind.lower()} is not known", "")


def _anchor(kind: str, flags: int) -> Regex:
    r"""An anchor as what it says of the characters on either side; \b and \B speak of both."""
    anything = Chars(EVERYTHING)
    match kind:
        case "AT_BEGINNING" if flags & re.MULTILINE:
            return Look(Chars(~NEWLINE), "behind", True, "^")
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return Look(anything, "behind", True, "^" if kind == "AT_BEGINNING" else "\\A")
        case "AT_END" if flags & re.MULTILINE:
            return Look(Chars(~NEWLINE), "ahead", True, "$")
        case "AT_END":
            last = Branch((Chars(~NEWLINE), Sequence((Chars(NEWLINE), anything))))
            return Look(last, "ahead", True, "$")
        case "AT_END_STRING":
            return Look(anything, "ahead", True, "\\Z")
        case _:
            return _boundary(flags, is_edge=kind == "AT_BOUNDARY")


def _boundary(flags: int, *, is_edge: bool) -> Regex:
    word = Chars(class_of_escape(r"\w", bool(flags & re.ASCII)))
    marker = "\\b" if is_edge else "\\B"

    def side(is_word: bool) -> Regex:
        is_next_word = is_word != is_edge
        behind = Look(word, "behind", not is_word, marker)
        return Sequence((behind, Look(word, "ahead", not is_next_word, marker)))

    return Branch((side(True), side(False)))


def _folded(chars: CharacterSet, flags: int) -> CharacterSet:
    return fold_case(chars, bool(flags & re.ASCII)) if flags & re.IGNORECASE else chars


def _class(items: Iterable[tuple[Any, Any]], flags: int) -> CharacterSet:
    chars, is_negated = NOTHING, False
    for kind, value in items:
        match str(kind):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                chars |= single(value)
            case "RANGE":
                chars |= character_set([value])
            case _:
                chars |= _category(str(value), flags)
    chars = _folded(chars, flags)
    return ~chars if is_negated else chars


def _category(name: str, flags: int) -> CharacterSet:
    is_negated = "_NOT_" in name
    escape = _ESCAPES[name.rsplit("_", 1)[1]]
    chars = class_of_escape(escape, bool(flags & re.ASCII))
    return ~chars if is_negated else chars
