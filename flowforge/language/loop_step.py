"""The verb `loop`: a block again and again, with named values carried from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from flowforge.language.blocks import parse_block, resolve_block_with_names
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import integer_of, is_safe_name, word_of
from flowforge.language.program import Loop
from flowforge.language.scope import Binding, Names
from flowforge.language.types import ANY, Array, Field, Object, Type, join_types
from flowforge.language.value_drafts import expression_of, outside, values_of
from flowforge.language.yaml_nodes import MappingNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.drafts import BlockDraft, Context
    from flowforge.language.expressions import Expression
    from flowforge.language.program import Block
    from flowforge.language.source import Span
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import Node

STEP_KEYS = ("loop", "until", "while", "max", "on_max", "do", "yield", "next")
MAX_ROUNDS = 10_000
_FORM = "write loop: { text: '${ draft }' }"


class _Round(NamedTuple):
    """One round, resolved. names: what `until` sees of it."""

    body: Block | None
    next: Mapping[str, Expression]
    names: Names


@dataclass(frozen=True, slots=True)
class LoopDraft:
    """A `loop` step before names are resolved."""

    carried: Mapping[str, ValueDraft]
    carried_spans: Mapping[str, Span]
    body: BlockDraft
    next: Mapping[str, ValueDraft]
    until: ValueDraft | None
    while_condition: ValueDraft | None
    max_rounds: int
    on_max: Literal["keep", "fail"]
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the first values read, and what the rounds read from outside."""
        for value in self.carried.values():
            yield from value.names()
        yield from self.body.references(self.carried)
        if self.while_condition is not None:
            yield from outside(self.while_condition.names(), self.carried)
        inner = {*self.carried, *self.body.steps}
        for value in self.next.values():
            yield from outside(value.names(), inner)
        if self.until is not None:
            yield from outside(self.until.names(), inner)

    def resolve(self, names: Names, context: Context) -> tuple[Loop, Type] | None:
        """The verb, and the object of what is carried."""
        for name, span in self.carried_spans.items():
            if names.find(name) is not None:
                message = f"carried value {name!r} hides a name of the same spelling"
                context.report.error("WF106", message, span, "choose another name")
        report = context.report
        carried = {name: value.typed(names, report) for name, value in self.carried.items()}
        types = {name: value.type for name, value in carried.items()}
        if not context.is_trial:
            # A first pass with the types before the first round tells those after it.
            trial = self._round(types, names, context.for_trial())
            types = _widened(types, trial.next)
        inside = _names_with(types, names)
        condition = self.while_condition
        while_condition = None if condition is None else condition.condition(inside, report)
        round_ = self._round(types, names, context)
        until = None if self.until is None else self.until.condition(round_.names, report)
        types = _widened(types, round_.next)
        if round_.body is None:
            return None
        verb = Loop(
            carried,
            round_.body,
            round_.next,
            until,
            while_condition,
            self.max_rounds,
            self.on_max,
        )
        fields = tuple(Field(name, type_, True) for name, type_ in types.items())
        return verb, Object(fields, None)

    def _round(self, types: Mapping[str, Type], names: Names, context: Context) -> _Round:
        inside = _names_with(types, names)
        body, own = resolve_block_with_names(self.body, inside, context)
        following = {name: value.typed(own, context.report) for name, value in self.next.items()}
        return _Round(body, following, own)


def parse_loop(name: str, step: MappingNode, context: Context) -> LoopDraft | None:
    """Read a `loop` step."""
    report = context.report
    entry, do = step.entry("loop"), step.entry("do")
    assert entry is not None
    carried = values_of(entry, context, _FORM)
    spans = {} if not carried else _key_spans(entry.value)
    for key in carried:
        is_safe_name(key, spans[key], "carried value", report)
    max_rounds = _max_of(name, step, context)
    until, while_ = step.entry("until"), step.entry("while")
    if until is not None and while_ is not None:
        message = f"loop {name!r} has both 'until' and 'while'"
        report.error("WF107", message, while_.key_span, "keep one: 'until' is asked after a round")
    body = None
    if do is None:
        message = f"step {name!r} has 'loop' and no 'do'"
        report.error("WF103", message, entry.key_span, "'do' holds the steps to repeat")
    else:
        body = parse_block(name, do, step.entry("yield"), context, has_value=False)
    if step.entry("yield") is not None:
        message = "the value of a loop is what it carries"
        report.error("WF107", message, do.key_span if do else entry.key_span, "use 'next'")
    following = _next_of(name, step, carried, context)
    until_draft = expression_of(until, context, "${ review.ok }")
    while_draft = expression_of(while_, context, "${ count < 3 }")
    on_max = _on_max_of(step, context)
    if not carried or body is None or max_rounds is None:
        return None
    return LoopDraft(carried, spans, body, following, until_draft, while_draft, max_rounds, on_max)


def _key_spans(node: Node) -> dict[str, Span]:
    entries = node.entries if isinstance(node, MappingNode) else ()
    return {entry.key: entry.key_span for entry in entries}


def _max_of(name: str, step: MappingNode, context: Context) -> int | None:
    entry, loop = step.entry("max"), step.entry("loop")
    assert loop is not None
    if entry is None:
        message = f"loop {name!r} has no 'max'"
        context.report.error("WF121", message, loop.key_span, "every loop is bounded: add max: 3")
    return integer_of(entry, context.report, 1, MAX_ROUNDS)


def _on_max_of(step: MappingNode, context: Context) -> Literal["keep", "fail"]:
    entry = step.entry("on_max")
    has_condition = step.entry("until") is not None or step.entry("while") is not None
    if entry is not None and not has_condition:
        message = "'on_max' without 'until' or 'while': the loop always runs 'max' rounds"
        context.report.error("WF107", message, entry.key_span, "remove it")
    word = word_of(entry, context.report, ("keep", "fail"))
    return "keep" if word == "keep" or not has_condition else "fail"


def _next_of(
    name: str, step: MappingNode, carried: Mapping[str, ValueDraft], context: Context
) -> dict[str, ValueDraft]:
    entry, loop = step.entry("next"), step.entry("loop")
    assert loop is not None
    if entry is None:
        message = f"loop {name!r} has no 'next'"
        help = "say what the carried values are after a round: next: { text: '${ … }' }"
        context.report.error("WF103", message, loop.key_span, help)
        return {}
    following = values_of(entry, context, "write next: { text: '${ rewrite }' }")
    spans = _key_spans(entry.value)
    for key in following:
        if key not in carried:
            message = f"'next' names {key!r}, which loop {name!r} does not carry"
            advice = did_you_mean(key, carried, f"carried values: {', '.join(carried)}")
            context.report.error("WF122", message, spans[key], advice)
    return following


def _names_with(types: Mapping[str, Type], names: Names) -> Names:
    return Names({name: Binding("variable", type_) for name, type_ in types.items()}, names)


def _widened(types: Mapping[str, Type], following: Mapping[str, Expression]) -> dict[str, Type]:
    return {
        name: _joined(type_, following[name].type) if name in following else type_
        for name, type_ in types.items()
    }


def _joined(first: Type, following: Type) -> Type:
    # [] is a list of nothing in particular, and must not hide what later rounds put into it.
    if first == Array(ANY) and isinstance(following, Array):
        return following
    return join_types((first, following))
