"""Terminals that could take `re` exponential time, given to lark in a form that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lark.lexer import PatternRE

from flowforge.grammars.lark.automaton import match_automaton
from flowforge.grammars.lark.backtracking import may_take_exponential_time
from flowforge.grammars.lark.elimination import endings_of, is_same_language, regex_of
from flowforge.grammars.lark.match_order import has_one_way
from flowforge.grammars.lark.regex_program import TooLarge
from flowforge.grammars.lark.regex_text import write_regex
from flowforge.grammars.lark.regex_tree import Unsupported, parse_regex

if TYPE_CHECKING:
    from lark.lexer import TerminalDef

    from flowforge.grammars.lark.automaton import Dfa
    from flowforge.grammars.lark.regex_tree import Regex


def make_safe(terminal: TerminalDef) -> Regex | None:
    """Have the terminal matched by another regex where it needs that and where that can be done.

    Gives what it matches by longest match, None where it is left as it is. Value and width stay
    the author's: lark orders terminals by them.
    """
    pattern = terminal.pattern
    if not isinstance(pattern, PatternRE):
        return None
    try:
        regex = parse_regex(pattern.to_regexp())
        if has_one_way(regex) or not may_take_exponential_time(regex):
            return None
        found = match_automaton(regex)
        language = None if found.pending else regex_of(found)
        if language is None:
            return None
        text = _as_python(found, language)
    except (Unsupported, TooLarge, RecursionError):
        return None
    changed = PatternRE(pattern.value, pattern.flags, pattern.raw)
    changed._width = (pattern.min_width, pattern.max_width)  # pyright: ignore[reportPrivateUsage]
    # On the instance, because lark's lexer asks for exactly this class.
    changed.to_regexp = lambda: text  # type: ignore[method-assign]
    terminal.pattern = changed
    return language


def _as_python(found: Dfa, language: Regex) -> str:
    """A regex of which `re` takes the longest match.

    What is made of an automaton has one way for each text. Where `re` would not take the longest
    of several texts first, each way asks that none goes on behind it.
    """
    if is_same_language(match_automaton(language), found):
        return write_regex(language, "python")
    return "|".join(
        f"(?:{write_regex(ending, 'python')})(?!{write_regex(onward, 'python')})"
        if onward is not None
        else f"(?:{write_regex(ending, 'python')})"
        for ending, onward in endings_of(found)
    )
