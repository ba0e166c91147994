"""Warnings about a program that can run: what its author probably did not mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.expression_nodes import Constant, FieldOf, Name, children_of
from flowforge.language.growth import grows
from flowforge.language.layout import add_layout_warnings
from flowforge.language.ordering import order_of
from flowforge.language.program import Ask, Call, Loop, Parallel, Run
from flowforge.language.source import Span
from flowforge.language.traversal import all_expressions, all_steps, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.errors import Location
    from flowforge.language.expression_nodes import Node
    from flowforge.language.program import Program, Step, ToolSpec
    from flowforge.language.scope import Report

# Up to this many rounds a text that grows is what a loop is often for.
_FEW_ROUNDS = 10


def add_warnings(program: Program, report: Report) -> None:
    """Add what can be said of the whole program."""
    results = [output.value for output in program.outputs.values()]
    used = frozenset[str]().union(*(result.names for result in results))
    if not program.outputs:
        _warn_of_no_outputs(program, report)
    else:
        _warn_of_unused(program.steps, used, program, report)
    _warn_of_writes(program.steps, program.tools, report)
    add_layout_warnings(program.steps, report)
    expressions = [*all_expressions(program.steps.values()), *results]
    reads = _FieldReads([expression.node for expression in expressions])
    for step in all_steps(program.steps.values()):
        _warn_of_blocks(step, program, report)
        if isinstance(step.verb, Loop):
            _warn_of_carried(step, step.verb, reads, report)


class _FieldReads:
    """Which fields of which names a program reads."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._fields: set[tuple[str, str]] = set()
        self._whole: set[str] = set()
        pending = [*nodes]
        while pending:
            node = pending.pop()
            if isinstance(node, FieldOf) and isinstance(node.subject, Name):
                self._fields.add((node.subject.name, node.field))
                continue
            if isinstance(node, Name):
                self._whole.add(node.name)
            pending.extend(children_of(node))

    def has(self, name: str, field: str) -> bool:
        """Whether `name.field`, or all of `name`, is read somewhere."""
        return name in self._whole or (name, field) in self._fields


def _warn_of_no_outputs(program: Program, report: Report) -> None:
    """Warn of a run that would return nothing, unless a step is there for what it does."""
    steps = list(program.steps.values())
    if steps and not any(_has_effect(step, program.tools) for step in steps):
        last = steps[-1]
        help = f"add outputs: {{ {last.name}: '${{ {last.name} }}' }}"
        message = "the workflow has no outputs: a run of it returns nothing"
        report.warning("WF156", message, _span(last, report), help)


def _warn_of_blocks(step: Step, program: Program, report: Report) -> None:
    for word, block in blocks_of(step):
        _warn_of_writes(block.steps, program.tools, report)
        if block is step.finally_block:
            continue
        used = block.result.names
        if isinstance(step.verb, Loop) and word == "do":
            conditions = [step.verb.until] if step.verb.until is not None else []
            read = [*step.verb.next.values(), *conditions]
            used = used.union(*(expression.names for expression in read))
        _warn_of_unused(block.steps, used, program, report)
    if isinstance(step.verb, Parallel):
        writers = [
            branch
            for branch in step.verb.branches.values()
            if any(_writes(one, program.tools) for one in branch.steps.values())
        ]
        for branch in writers[1:]:
            first = next(iter(writers[0].steps.values()))
            _warn_of_pair(next(iter(branch.steps.values())), first, report)


def _is_written_out(name: str, program: Program) -> bool:
    """Whether a text is the name of a step, which was probably meant to be its value."""
    outputs = (output.value for output in program.outputs.values())
    pending = [one.node for one in (*all_expressions(program.steps.values()), *outputs)]
    while pending:
        node = pending.pop()
        if isinstance(node, Constant) and node.value == name:
            return True
        pending.extend(children_of(node))
    return False


def _warn_of_unused(
    steps: Mapping[str, Step], used: frozenset[str], program: Program, report: Report
) -> None:
    needed = used.union(*(step.needs for step in steps.values()))
    for name, step in steps.items():
        if name not in needed and not _has_effect(step, program.tools):
            help = "remove it, or use its value"
            if _is_written_out(name, program):
                help = f"its name stands somewhere as a text: ${{ {name} }} is its value"
            report.warning("WF152", f"step {name!r} is used by nothing", _span(step, report), help)


def _warn_of_writes(
    steps: Mapping[str, Step], tools: Mapping[str, ToolSpec], report: Report
) -> None:
    writers = [name for name, step in steps.items() if _writes(step, tools)]
    if len(writers) < 2:
        return
    before = _ancestors_of(steps)
    for idx, name in enumerate(writers):
        for other in writers[:idx]:
            if name not in before[other] and other not in before[name]:
                _warn_of_pair(steps[name], steps[other], report)
                break


def _warn_of_pair(step: Step, other: Step, report: Report) -> None:
    message = f"steps {other.name!r} and {step.name!r} both write, in no order"
    help = f"say which is first: after: {other.name}"
    report.warning("WF151", message, _span(step, report), help)


def _ancestors_of(steps: Mapping[str, Step]) -> dict[str, set[str]]:
    ordered, _ = order_of({name: step.needs for name, step in steps.items()})
    before: dict[str, set[str]] = {}
    for name in ordered:
        needs = steps[name].needs
        before[name] = set(needs).union(*(before[needed] for needed in needs))
    return before


def _warn_of_carried(step: Step, loop: Loop, reads: _FieldReads, report: Report) -> None:
    inside = [*all_expressions(loop_step for loop_step in loop.body.steps.values())]
    conditions = [one for one in (loop.until, loop.while_condition) if one is not None]
    inside += [*loop.next.values(), *conditions]
    read = frozenset[str]().union(*(expression.names for expression in inside))
    for name, first in loop.carried.items():
        span = _span_of(first.location, 1, report)
        if name not in read and not reads.has(step.name, name):
            message = f"nothing reads {name!r}, which loop {step.name!r} carries"
            help = "read it in the loop, or take it out"
            report.warning("WF150", message, span, help)
        if name in loop.next and loop.max_rounds > _FEW_ROUNDS and grows(name, loop):
            message = f"{name!r} grows in each of up to {loop.max_rounds:,} rounds"
            help = "keep its end: '| tail(5)' for a list, '| truncate(2000)' for a text"
            span = _span_of(loop.next[name].location, 1, report)
            report.warning("WF153", message, span, help)


def _writes(step: Step, tools: Mapping[str, ToolSpec]) -> bool:
    for one in all_steps((step,)):
        if isinstance(one.verb, Call):
            if tools[one.verb.tool].effect == "write":
                return True
        elif isinstance(one.verb, Run):
            inner = one.verb.program
            if any(_writes(inner_step, inner.tools) for inner_step in inner.steps.values()):
                return True
    return False


def _has_effect(step: Step, tools: Mapping[str, ToolSpec]) -> bool:
    """Whether a step may be there for what it does, and not for its value."""
    return any(
        isinstance(one.verb, Ask | Run)
        or (isinstance(one.verb, Call) and tools[one.verb.tool].effect != "read")
        for one in all_steps((step,))
    )


def _span(step: Step, report: Report) -> Span:
    return _span_of(step.location, len(step.name), report)


def _span_of(location: Location, num_chars: int, report: Report) -> Span:
    start = report.source.line_start(location.line - 1) + location.column - 1
    return Span(start, start + num_chars)
