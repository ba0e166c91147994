"""Terminals: what each may match, as a regex without looks and orders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowforge.grammars.lark.automaton import Dfa, language_automaton, match_automaton
from flowforge.grammars.lark.backtracking import may_take_exponential_time
from flowforge.grammars.lark.elimination import (
    has_text_outside,
    is_same_language,
    regex_of,
    without_first,
)
from flowforge.grammars.lark.match_order import first_chars, has_one_way
from flowforge.grammars.lark.regex_program import TooLarge
from flowforge.grammars.lark.regex_tree import (
    EMPTY,
    Branch,
    Chars,
    Look,
    Repeat,
    Sequence,
    Unsupported,
    parse_regex,
    sequence,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lark.lexer import TerminalDef

    from flowforge.grammars.lark.character_set import CharacterSet
    from flowforge.grammars.lark.regex_tree import Regex


# Of an automaton that is built only to see whether it is of use.
_MAX_SMALL = 200
_DEPENDS = "a look-ahead depends on what comes behind the terminal"
_EXPONENTIAL = (
    "lark could need time exponential in the text: a repeat inside a repeat matches the same text "
    "in two ways"
)


@dataclass(frozen=True, slots=True)
class TerminalProblem:
    """Why a terminal cannot be translated exactly.

    marker: the construct as written. can_drop: whether it can be left out, which makes the mask
    allow more than lark does.
    """

    terminal: str
    message: str
    marker: str
    can_drop: bool


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal of lark's. regex: what it matches by longest match; None where nothing can.

    first: the characters it may begin with, and perhaps more. is_rewritten: whether the regex is
    not the author's own, because look-around or the order of trying had to be worked in.
    """

    name: str
    definition: TerminalDef
    regex: Regex | None
    first: CharacterSet
    is_rewritten: bool = False


def read_regex(definition: TerminalDef) -> Regex | TerminalProblem:
    """The regex of a terminal as the author wrote it."""
    try:
        return parse_regex(definition.pattern.to_regexp())
    except Unsupported as error:
        return TerminalProblem(definition.name, error.reason, error.marker, can_drop=False)
    except RecursionError:
        return TerminalProblem(definition.name, "it is nested too deep", "", can_drop=False)


def translate_terminal(
    definition: TerminalDef, regex: Regex, following: Callable[[], CharacterSet]
) -> tuple[Terminal, tuple[TerminalProblem, ...]]:
    """What a terminal matches where a text goes on.

    following: the characters that may come directly behind it; asked only where that matters.
    A terminal with problems is one without the constructs that they are about.
    """
    name, first = definition.name, first_chars(regex)
    if has_one_way(regex):
        return Terminal(name, definition, regex, first), ()
    problems: tuple[TerminalProblem, ...] = ()
    if may_take_exponential_time(regex):
        # What could be exchanged for a safe pattern, was.
        problems = (TerminalProblem(name, _EXPONENTIAL, "", can_drop=False),)
    try:
        try:
            found = match_automaton(regex)
        except Unsupported as error:
            problem = TerminalProblem(name, error.reason, error.marker, can_drop=True)
            problems = (problem, *problems)
            regex = _without_looks(regex)
            found = match_automaton(regex)
        found, marker = _decided(found, following)
        if marker is not None:
            problem = TerminalProblem(name, _DEPENDS, marker, can_drop=True)
            problems = (problem, *problems)
        if not _has_looks(regex) and is_same_language(found, language_automaton(regex)):
            return Terminal(name, definition, regex, first), problems
        rewritten = regex_of(found)
    except (TooLarge, RecursionError):
        return _too_large(definition, regex, first)
    return Terminal(name, definition, rewritten, first, is_rewritten=True), problems


def _decided(found: Dfa, following: Callable[[], CharacterSet]) -> tuple[Dfa, str | None]:
    """The automaton with ends that depend on what follows made ends, or none.

    Also the marker of a look-ahead for which that cannot be said; what it asks for is left out.
    """
    marker: str | None = None
    accepting = set(found.accepting)
    for state, pending in found.pending.items():
        # Where the terminal itself can go on, the lexer does, and does not end here.
        behind = following()
        for chars, _ in found.moves[state]:
            behind -= chars
        if not behind - pending.holds and pending.holds_at_end:
            continue
        if not behind - pending.breaks and not pending.holds_at_end:
            accepting.remove(state)
        else:
            marker = pending.marker
    return Dfa(found.moves, frozenset(accepting)), marker


def without_chars(regex: Regex, chars: CharacterSet) -> Regex | None:
    """A regex for what another matches and has none of some characters; None for nothing."""
    match regex:
        case Chars(mine):
            left = mine - chars
            return Chars(left) if left else None
        case Sequence(parts):
            kept = [without_chars(part, chars) for part in parts]
            rest = tuple(part for part in kept if part is not None)
            return Sequence(rest) if len(rest) == len(parts) else None
        case Branch(parts):
            kept = [without_chars(part, chars) for part in parts]
            rest = tuple(part for part in kept if part is not None)
            return Branch(rest) if rest else None
        case Repeat(part, least):
            inner = without_chars(part, chars)
            if inner is None:
                return None if least else EMPTY
            return replace(regex, part=inner)
        case Look():
            return regex


def without_prefix(regex: Regex, prefix: Regex) -> Regex | None:
    """What is left of a regex that is another, or nothing, and then that; None where it is not.

    What is left does not begin like the other.
    """
    chars = first_chars(prefix)
    if not chars & first_chars(regex):
        return None
    try:
        whole = language_automaton(regex, max_states=_MAX_SMALL)
        rest = regex_of(without_first(whole, chars))
        if rest is None:
            return None
        joined = sequence((Repeat(prefix, 0, 1, is_lazy=False), rest))
        is_same = is_same_language(whole, language_automaton(joined, max_states=_MAX_SMALL))
    except TooLarge:
        return None
    return rest if is_same else None


def leaves_some(regex: Regex, whole: list[Regex], beginning: list[Regex]) -> bool:
    """Whether a text is left where texts of some regexes, and those that begin like others, go."""
    try:
        dfa = language_automaton(regex, max_states=_MAX_SMALL)
        others = [language_automaton(one, max_states=_MAX_SMALL) for one in (*whole, *beginning)]
    except TooLarge:
        return True  # the larger one of two languages is hardly covered
    return has_text_outside(dfa, others[: len(whole)], others[len(whole) :])


def _too_large(
    definition: TerminalDef, regex: Regex, first: CharacterSet
) -> tuple[Terminal, tuple[TerminalProblem, ...]]:
    reason = "it is too large to work in the order in which its parts are tried"
    marker = next((part.marker for part in walk(regex) if isinstance(part, Look)), "")
    problem = TerminalProblem(definition.name, reason, marker, can_drop=True)
    return Terminal(definition.name, definition, _without_looks(regex), first), (problem,)


def _has_looks(regex: Regex) -> bool:
    return any(isinstance(part, Look) for part in walk(regex))


def _without_looks(regex: Regex) -> Regex:
    match regex:
        case Look():
            return EMPTY
        case Sequence(parts):
            return sequence(map(_without_looks, parts))
        case Branch(parts):
            return Branch(tuple(map(_without_looks, parts)))
        case Repeat(part=part):
            return replace(regex, part=_without_looks(part))
        case _:
            return regex
