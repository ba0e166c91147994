"""The parts of a step: the blocks inside it and the expressions it evaluates itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.expressions import Expression
from flowforge.language.join_policies import Best
from flowforge.language.program import (
    Ask,
    Block,
    Call,
    ForEach,
    Gen,
    If,
    Loop,
    Parallel,
    Run,
    SaidTurn,
    Set,
    Switch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowforge.language.program import Step
    from flowforge.language.templates import Template


def blocks_of(step: Step) -> Iterator[tuple[str, Block]]:
    """The blocks directly inside a step, each with the word before it in the file."""
    match step.verb:
        case ForEach(body=body) | Loop(body=body):
            yield "do", body
        case If(then=then, otherwise=otherwise):
            yield "then", then
            if otherwise is not None:
                yield "else", otherwise
        case Switch(cases=cases, default=default):
            for case in cases:
                yield str(case.value), case.body
            if default is not None:
                yield "default", default
        case Parallel(branches=branches):
            yield from branches.items()
        case Gen() | Call() | Run() | Ask() | Set():
            pass
    if step.catch is not None and isinstance(step.catch.body, Block):
        yield "catch", step.catch.body
    if step.finally_block is not None:
        yield "finally", step.finally_block


def expressions_of(step: Step) -> Iterator[Expression]:
    """The expressions of a step that are not inside one of its blocks' steps."""
    yield from _expressions_of_verb(step)
    if step.when is not None:
        yield step.when
    if step.catch is not None and isinstance(step.catch.body, Expression):
        yield step.catch.body
    for _, block in blocks_of(step):
        yield block.result


def all_expressions(steps: Iterable[Step]) -> Iterator[Expression]:
    """The expressions of steps and of everything inside them."""
    for step in all_steps(steps):
        yield from expressions_of(step)


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Steps and those inside them, in file order; those of other files are left out."""
    for step in steps:
        yield step
        for _, block in blocks_of(step):
            yield from all_steps(block.steps.values())


def _expressions_of_verb(step: Step) -> Iterator[Expression]:
    match step.verb:
        case Gen():
            yield from _expressions_of_gen(step.verb)
        case Call(arguments=arguments) | Run(arguments=arguments):
            yield from arguments.values()
        case ForEach(items=items, join=join):
            yield items
            if isinstance(join, Best):
                yield join.score
        case Loop():
            yield from step.verb.carried.values()
            yield from step.verb.next.values()
            conditions = (step.verb.until, step.verb.while_condition)
            yield from (condition for condition in conditions if condition is not None)
        case If(condition=condition):
            yield condition
        case Switch(subject=subject):
            yield subject
        case Parallel(join=join):
            if isinstance(join, Best):
                yield join.score
        case Ask():
            yield from _holes(step.verb.prompt)
            if step.verb.show is not None:
                yield step.verb.show
        case Set(value=value):
            yield value


def _expressions_of_gen(verb: Gen) -> Iterator[Expression]:
    for template in (verb.system, verb.user, verb.prefill):
        yield from _holes(template)
    if isinstance(verb.turns, Expression):
        yield verb.turns
    else:
        for turn in verb.turns:
            yield from _holes(turn.text if isinstance(turn, SaidTurn) else None)
    if isinstance(verb.pick, Best):
        yield verb.pick.score


def _holes(template: Template | None) -> Iterator[Expression]:
    for part in () if template is None else template.parts:
        if not isinstance(part, str):
            yield part
