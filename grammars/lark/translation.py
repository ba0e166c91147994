"""A loaded grammar written in the mask dialect, and how exactly that is the same."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from flowforge.errors import WorkflowError
from flowforge.grammars.lark.character_set import NOTHING, CharacterSet
from flowforge.grammars.lark.lexer_order import LexerOrder, Losses, Occurrence, rivals_of
from flowforge.grammars.lark.match_order import first_chars
from flowforge.grammars.lark.regex_text import write_regex
from flowforge.grammars.lark.symbols import Rules
from flowforge.grammars.lark.terminals import (
    Terminal,
    TerminalProblem,
    leaves_some,
    read_regex,
    translate_terminal,
    without_chars,
    without_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lark.lexer import TerminalDef

    from flowforge.errors import Location
    from flowforge.grammars.lark.regex_tree import Regex
    from flowforge.grammars.lark.source import LoadedGrammar

# Lark skips ignored text before the first terminal, too.
_HEAD = '%llguidance {"allow_initial_skip": true}'
_ANY_TEXT = "/(?s:.*)/"
_APPROXIMATE_HELP = (
    "write the terminal without it, or set 'approximate: true' to leave it out of the mask; lark "
    "then still judges the finished text"
)


@dataclass(frozen=True, slots=True)
class GrammarProblem:
    """A construct that cannot be translated exactly.

    message: lower case, no full stop. severity: a "warning" for one that was left out.
    """

    message: str
    location: Location
    severity: Literal["error", "warning"]
    help: str


@dataclass(frozen=True, slots=True)
class Translation:
    """A grammar in the mask dialect.

    mask_grammar: its text. problems: what was left out; none, and the mask allows no text that
    lark's parser refuses. rules: that matter. terminals: by name, those of the rules and the
    ignored. restricted: for `parser: lalr`, terminals that others take texts from.
    """

    mask_grammar: str
    problems: tuple[GrammarProblem, ...]
    rules: Rules
    terminals: Mapping[str, Terminal]
    ignored: tuple[str, ...]
    restricted: tuple[str, ...]

    @property
    def rewritten(self) -> tuple[str, ...]:
        """Terminals with look-around, or the order in which parts are tried, worked in."""
        return tuple(name for name, one in self.terminals.items() if one.is_rewritten)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was left out."""
        return not self.problems


def translate(grammar: LoadedGrammar, *, approximate: bool = False) -> Translation:
    """Translate a grammar.

    approximate: leave out what cannot be exact where that only makes the mask allow more.
    Raises WorkflowError WF431 for a grammar that no text can match, and WF432, with the place of
    the first, for constructs that cannot be translated; `find_problems` gives them all.
    """
    translated = _Translator(grammar, approximate=approximate)
    errors = [problem for problem in translated.problems if problem.severity == "error"]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise WorkflowError("WF432", first.message + more, location=first.location, help=first.help)
    return translated.write()


def translate_inner(
    grammar: LoadedGrammar, excluded: CharacterSet, *, approximate: bool = False
) -> str:
    """The mask grammar of the texts without some characters, to stand inside another grammar.

    Raises WorkflowError like `translate`; WF431 also where every text has such a character.
    """
    translated = _Translator(grammar, approximate=approximate)
    translated.exclude(excluded)
    return translated.write(is_inner=True).mask_grammar


def find_problems(grammar: LoadedGrammar, *, approximate: bool = False) -> list[GrammarProblem]:
    """Every construct that cannot be translated exactly. Raises WorkflowError WF431."""
    return _Translator(grammar, approximate=approximate).problems


class _Translator:
    """One translation. problems: by place."""

    def __init__(self, grammar: LoadedGrammar, *, approximate: bool) -> None:
        self._grammar = grammar
        self._approximate = approximate
        self._rules = Rules.of(grammar.lark.rules, grammar.start)
        if not self._rules.can_end:
            raise WorkflowError(
                "WF431",
                f"no text can match the rule {grammar.start!r}: each way through it comes back to "
                "itself",
                location=grammar.places.of_rule(grammar.start),
                help="give the rule an alternative that ends",
            )
        self.problems: list[GrammarProblem] = []
        defined = {str(one.name): one for one in grammar.terminals}
        self._ignored = list(dict.fromkeys(grammar.lark.ignore_tokens))
        used = {*self._rules.terminals, *self._ignored}
        self._regexes: dict[str, Regex] = {}
        for name in sorted(used):
            self._read(name, defined.get(name))
        self._definitions = {name: defined[name] for name in defined if name in self._regexes}
        self._terminals = {
            name: self._translate(definition) for name, definition in self._definitions.items()
        }
        for name in self._ignored:
            self._without_leading_ignored(name)
        self._left: dict[tuple[str, Losses], bool] = {}
        self._losses = self._find_losses()
        self.problems.sort(key=lambda one: (one.location.file, one.location.line))

    def _read(self, name: str, definition: TerminalDef | None) -> None:
        if definition is None:
            self.problems.append(self._declared(name))
            return
        regex = self._grammar.made_safe.get(name) or read_regex(definition)
        if isinstance(regex, TerminalProblem):
            self._report(regex)
        else:
            self._regexes[name] = regex

    def _translate(self, definition: TerminalDef) -> Terminal:
        def following() -> CharacterSet:
            return self._chars_behind(definition.name)

        name, regex = definition.name, self._regexes[definition.name]
        if name in self._grammar.made_safe:
            return Terminal(name, definition, regex, first_chars(regex), is_rewritten=True)
        terminal, problems = translate_terminal(definition, regex, following)
        for problem in problems:
            self._report(problem)
        if terminal.regex is None:
            self._report(TerminalProblem(terminal.name, "no text can match it", "", can_drop=False))
        return terminal

    def _without_leading_ignored(self, name: str) -> None:
        """Take from an ignored terminal what another ignores before it anyway.

        The mask's lexer does not go back: once it is on the way to a comment that begins with
        white space, a space can no more stand before anything else.
        """
        for other in self._ignored:
            mine, others = self._terminals.get(name), self._terminals.get(other)
            if other == name or mine is None or others is None:
                continue
            if mine.regex is not None and others.regex is not None:
                shorter = without_prefix(mine.regex, others.regex)
                if shorter is not None:
                    self._terminals[name] = replace(mine, regex=shorter, is_rewritten=True)

    def _chars_behind(self, name: str) -> CharacterSet:
        """What the text directly behind a terminal may begin with."""
        following = self._rules.following
        # Ignored text may stand anywhere, and before anything.
        names = self._rules.terminals if name in self._ignored else following.get(name, ())
        chars = NOTHING
        for other in {*names, *self._ignored}:
            # A terminal that could not be read is an error anyway.
            if other in self._regexes:
                chars |= first_chars(self._regexes[other])
        return chars

    def _report(self, problem: TerminalProblem) -> None:
        grammar = self._grammar
        pattern = next(one.pattern for one in grammar.terminals if one.name == problem.terminal)
        location = grammar.places.of_construct(problem.terminal, pattern, problem.marker)
        is_dropped = problem.can_drop and self._approximate
        construct = f", at {problem.marker!r}" if problem.marker else ""
        message = f"terminal {problem.terminal!r} cannot be masked{construct}: {problem.message}"
        if is_dropped:
            message = f"terminal {problem.terminal!r} is masked without {problem.marker!r}: "
            message += problem.message
        help = "write the terminal without it"
        if problem.can_drop:
            help = "lark judges the finished text" if is_dropped else _APPROXIMATE_HELP
        severity: Literal["error", "warning"] = "warning" if is_dropped else "error"
        self.problems.append(GrammarProblem(message, location, severity, help))

    def _declared(self, name: str) -> GrammarProblem:
        return GrammarProblem(
            f"terminal {name!r} is only declared: text that code makes, such as indentation, "
            "cannot be masked",
            self._grammar.places.of_construct(name, None, ""),
            "error",
            "begin at a rule that does not need it, with 'start', or define the terminal",
        )

    def _find_losses(self) -> dict[Occurrence, Losses]:
        """What terminals lose to others, by place; for those that are ignored nothing."""
        if self._grammar.parser == "earley":
            return {}
        lark = self._grammar.lark
        order = LexerOrder(self._definitions.values())
        found: dict[Occurrence, Losses] = {}
        for place, rivals in rivals_of(lark, lark.rules).items():
            name = place.symbols[place.idx]
            if name not in self._terminals:
                continue
            # What is lost only after some texts is lost always, as the mask cannot tell such texts
            # apart: unless nothing would be left, which is not what the author means.
            for accepted in (rivals.sometimes, rivals.always):
                known = {one for one in accepted if one in self._definitions}
                losses = order.losses(name, {*known, *self._ignored})
                losses = self._relevant(name, losses)
                if losses != Losses() and self._leaves_some(name, losses):
                    found[place] = losses
                    break
        return found

    def _leaves_some(self, name: str, losses: Losses) -> bool:
        known = self._left.get((name, losses))
        if known is None:
            whole, beginning = (
                [regex for one in names if (regex := self._terminals[one].regex) is not None]
                for names in (losses.whole, losses.beginning)
            )
            regex = self._terminals[name].regex
            known = regex is not None and leaves_some(regex, whole, beginning)
            self._left[name, losses] = known
        return known

    def _relevant(self, name: str, losses: Losses) -> Losses:
        """Without what cannot begin like the terminal, and what would leave nothing of it."""
        first = self._terminals[name].first
        kept = tuple(one for one in losses.beginning if self._terminals[one].first & first)
        if self._definitions[name].pattern.type == "str":
            # A text that others take wholly is never taken, which lark lets pass.
            kept = ()
        return Losses(losses.whole, kept)

    def exclude(self, chars: CharacterSet) -> None:
        """Leave out the texts that have one of these characters."""
        left = {
            name: replace(one, regex=without_chars(one.regex, chars))
            for name, one in self._terminals.items()
            if one.regex is not None
        }
        self._terminals = {name: one for name, one in left.items() if one.regex is not None}
        kept = [
            rule
            for rule in self._grammar.lark.rules
            if all(not one.is_term or one.name in self._terminals for one in rule.expansion)
        ]
        self._rules = Rules.of(kept, self._grammar.start)
        if not self._rules.can_end:
            raise WorkflowError(
                "WF431",
                f"no text matches the rule {self._grammar.start!r} without a character that cannot "
                "be written where it stands",
                location=self._grammar.places.of_rule(self._grammar.start),
            )
        used = {*self._rules.terminals, *self._ignored}
        self._terminals = {name: one for name, one in self._terminals.items() if name in used}
        self._ignored = [name for name in self._ignored if name in self._terminals]
        # What a text is lost to that has none of the characters has none of them either.
        self._definitions = {name: self._definitions[name] for name in self._terminals}
        self._left = {}
        self._losses = self._find_losses()

    def write(self, *, is_inner: bool = False) -> Translation:
        """The translation of a grammar without errors.

        is_inner: whether it stands inside another grammar, where the mask skips nothing before the
        first terminal.
        """
        names = _Names(self._rules.alternatives, self._terminals)
        variants: dict[tuple[str, Losses], str] = {}
        lines = [*self._write_start(names, is_inner=is_inner)]
        for name, alternatives in self._rules.alternatives.items():
            bodies = " | ".join(
                self._write_alternative(name, symbols, names, variants)
                for symbols in dict.fromkeys(alternatives)
            )
            lines.append(f"{names[name]}: {bodies}")
        for name, terminal in self._terminals.items():
            assert terminal.regex is not None
            text = write_regex(terminal.regex)
            lines.append(f"{names[name]}: " + (f"/{text}/" if text else '""'))
        for (name, losses), variant in variants.items():
            lost = [names[other] for other in losses.whole]
            lost += [f"({names[other]} {_ANY_TEXT})" for other in losses.beginning]
            lines.append(f"{variant}: {names[name]} & ~({' | '.join(lost)})")
        lines += [f"%ignore {names[name]}" for name in self._ignored]
        return Translation(
            mask_grammar="\n".join(lines) + "\n",
            problems=tuple(self.problems),
            rules=self._rules,
            terminals=self._terminals,
            ignored=tuple(self._ignored),
            restricted=tuple(sorted({name for name, _ in variants})),
        )

    def _write_alternative(
        self,
        rule: str,
        symbols: tuple[str, ...],
        names: _Names,
        variants: dict[tuple[str, Losses], str],
    ) -> str:
        written: list[str] = []
        for idx, symbol in enumerate(symbols):
            losses = self._losses.get(Occurrence(rule, symbols, idx))
            if losses is None:
                written.append(names[symbol])
            else:
                variant = f"V{len(variants)}_{names[symbol]}"
                written.append(variants.setdefault((symbol, losses), variant))
        return " ".join(written) or '""'

    def _write_start(self, names: _Names, *, is_inner: bool) -> Iterator[str]:
        begin = names[self._rules.start]
        if not is_inner:
            yield _HEAD
        if not self._ignored:
            yield f"start: {begin}"
            return
        # The mask skips ignored text before a terminal; lark skips it behind the last one, too.
        yield f"start: rest {begin} rest" if is_inner else f"start: {begin} rest"
        skips = " | ".join(f"rest {names[name]}" for name in self._ignored)
        yield f'rest: "" | {skips}'


class _Names:
    """Names in the mask dialect, which takes fewer than lark; numbered, so that none meet."""

    def __init__(self, rules: Iterable[str], terminals: Iterable[str]) -> None:
        self._names = {
            **{name: f"r{idx}_{_plain(name).lower()}" for idx, name in enumerate(rules)},
            **{name: f"T{idx}_{_plain(name).upper()}" for idx, name in enumerate(terminals)},
        }

    def __getitem__(self, name: str) -> str:
        return self._names[name]


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name)[:40].strip("_")
