"""Prompts whose parts stand in an order that leaves nothing to share.

A prefix that several prompts begin with is computed once. So a value that is another one in each
branch, round or step should stand behind the text that is not: what follows it is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.language.program import Block, ForEach, Gen, Loop, SaidTurn
from flowforge.language.source import Span
from flowforge.language.traversal import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flowforge.language.expressions import Expression
    from flowforge.language.program import Step
    from flowforge.language.scope import Report
    from flowforge.language.templates import Template

_CHARS_PER_TOKEN = 4
_LEAST_TOKENS = 64
"""What is said again after a long value is often there on purpose; a page of text is not."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A block that runs several times. names: what is another value each time."""

    kind: Literal["branch", "round"]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Finding:
    """A hole, and the characters of text behind it that are the same each time."""

    hole: Expression
    num_chars: int
    kind: Literal["branch", "round"]


def add_layout_warnings(steps: Mapping[str, Step], report: Report) -> None:
    """Warn of values that stand before text that branches, rounds or steps could share."""
    _warn_inside(steps.values(), (), report)
    _warn_of_steps(steps.values(), report)


def _warn_inside(steps: Iterable[Step], around: tuple[_Repeat, ...], report: Report) -> None:
    for step in steps:
        if isinstance(step.verb, Gen) and around:
            _warn_of_step(step.verb, around, report)
        for _, block in blocks_of(step):
            inside = _repeat_of(step, block)
            _warn_inside(block.steps.values(), (*around, *inside), report)


def _repeat_of(step: Step, block: Block) -> tuple[_Repeat, ...]:
    verb = step.verb
    if isinstance(verb, ForEach) and block is verb.body:
        return (_Repeat("branch", frozenset({verb.variable, *_names_in(block)})),)
    if isinstance(verb, Loop) and block is verb.body:
        return (_Repeat("round", frozenset({*verb.carried, *_names_in(block)})),)
    return ()


def _names_in(block: Block) -> Iterator[str]:
    """Every name that a block, or a block inside it, binds."""
    for step in block.steps.values():
        yield step.name
        if isinstance(step.verb, ForEach):
            yield step.verb.variable
        elif isinstance(step.verb, Loop):
            yield from step.verb.carried
        for _, inner in blocks_of(step):
            yield from _names_in(inner)


def _warn_of_step(verb: Gen, around: tuple[_Repeat, ...], report: Report) -> None:
    found: list[_Finding] = []
    for repeat in around:
        # What continues a step of the same branch has nothing in common with other branches.
        if verb.from_step not in repeat.names:
            found += _first_change(verb, repeat)
    if not found:
        return
    worst = max(found, key=lambda one: one.num_chars)
    num_tokens = worst.num_chars // _CHARS_PER_TOKEN
    if num_tokens < _LEAST_TOKENS:
        return
    hole, kind = worst.hole, worst.kind
    ways = {"branch": "branch", "round": "round of the loop"}
    report.warning(
        "WF158",
        f"${{ {hole.text} }} is another value in each {kind}, and about {num_tokens:,} tokens "
        f"behind it are the same: each {ways[kind]} computes them again",
        _span_of(hole, report),
        f"put that text before ${{ {hole.text} }}: {'branches' if kind == 'branch' else 'rounds'} "
        "share what they begin with",
    )


def _first_change(verb: Gen, repeat: _Repeat) -> Iterator[_Finding]:
    """The first hole of a prompt that changes, with the fixed text behind it in its template."""
    for template in _templates_of(verb):
        for idx, part in enumerate(template.parts):
            if not isinstance(part, str) and part.names & repeat.names:
                fixed = (one for one in template.parts[idx:] if isinstance(one, str))
                yield _Finding(part, sum(len(one.strip()) for one in fixed), repeat.kind)
                return


def _templates_of(verb: Gen) -> Iterator[Template]:
    """The given texts of a prompt, in order, as far as the first that a model writes."""
    if verb.system is not None:
        yield verb.system
    if not isinstance(verb.turns, tuple):
        return
    for turn in verb.turns:
        if not isinstance(turn, SaidTurn):
            return
        yield turn.text
    if verb.user is not None:
        yield verb.user


# -- texts of several steps -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """A long text within a template. head: what the prompt has before the template, as written.

    before: what the template has before the text; hole: the last one there.
    """

    step: Step
    head: str
    before: str
    hole: Expression | None


def _warn_of_steps(steps: Iterable[Step], report: Report) -> None:
    """Warn of a text that two steps have behind different values, with nothing else before."""
    known: dict[tuple[str, str], _Text] = {}
    for step in _gens_in(steps):
        assert isinstance(step.verb, Gen)
        for text, found in _texts_of(step, step.verb):
            first = known.setdefault((found.head, text), found)
            hole = found.hole or first.hole
            if first.step is step or first.before == found.before or hole is None:
                continue
            num_tokens = len(text) // _CHARS_PER_TOKEN
            report.warning(
                "WF158",
                f"steps {first.step.name!r} and {step.name!r} have about {num_tokens:,} tokens in "
                f"common, behind ${{ {hole.text} }}: each step computes them again",
                _span_of(hole, report),
                "put that text before the values: steps share what they begin with",
            )


def _gens_in(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step.verb, Gen):
            yield step
        for _, block in blocks_of(step):
            yield from _gens_in(block.steps.values())


def _texts_of(step: Step, verb: Gen) -> Iterator[tuple[str, _Text]]:
    head = f"{verb.model} from {verb.from_step}"
    for template in _templates_of(verb):
        before, hole = "", None
        for part in template.parts:
            if not isinstance(part, str):
                before, hole = f"{before}${{{part.text}}}", part
                continue
            text = part.strip()
            if len(text) >= _LEAST_TOKENS * _CHARS_PER_TOKEN:
                yield text, _Text(step, head, before, hole)
            before += part
        head = f"{head}\n{before}"


def _span_of(hole: Expression, report: Report) -> Span:
    place = hole.location
    start = report.source.line_start(place.line - 1) + place.column - 1
    return Span(start, start + len(hole.text))
