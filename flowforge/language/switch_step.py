"""The verb `switch`: the block for a value, exhaustive over the values that the type has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.blocks import parse_inner_block, resolve_block
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import mapping_of
from flowforge.language.json_values import json_key
from flowforge.language.program import Case, Switch
from flowforge.language.types import (
    BOOLEAN,
    NUMBER,
    STRING,
    AnyType,
    Choice,
    Scalar,
    display_type,
    join_types,
    may_be,
    members_of,
    type_of_literal,
)
from flowforge.language.value_drafts import expression_of
from flowforge.language.yaml_scalars import ScalarError, value_of_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import BlockDraft, Context
    from flowforge.language.program import JsonValue
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("switch", "cases", "default")


@dataclass(frozen=True, slots=True)
class CaseDraft:
    """A case before names are resolved; `key` is what the file says."""

    key: str
    key_span: Span
    body: BlockDraft


@dataclass(frozen=True, slots=True)
class SwitchDraft:
    """A `switch` step before names are resolved."""

    subject: ValueDraft
    cases: tuple[CaseDraft, ...]
    default: BlockDraft | None
    default_span: Span | None
    span: Span
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the subject and all blocks read from outside."""
        yield from self.subject.names()
        for case in self.cases:
            yield from case.body.references()
        if self.default is not None:
            yield from self.default.references()

    def resolve(self, names: Names, context: Context) -> tuple[Switch, Type] | None:
        """The verb, and what any block yields."""
        subject = self.subject.typed(names, context.report)
        cases: list[Case] = []
        for draft in self.cases:
            value = self._value_of(draft, subject.type, context)
            body = resolve_block(draft.body, names, context)
            if body is not None:
                cases.append(Case(value, body))
        block = self.default
        default = None if block is None else resolve_block(block, names, context)
        self._check_exhaustive(subject.type, cases, context)
        if not cases or (block is not None and default is None):
            return None
        bodies = [*(case.body for case in cases), *([] if default is None else [default])]
        type_ = join_types(body.result.type for body in bodies)
        return Switch(subject, tuple(cases), default), type_

    def _value_of(self, draft: CaseDraft, subject: Type, context: Context) -> JsonValue:
        value = _value_of_key(draft.key, subject)
        if not may_be(type_of_literal(value), subject):
            known = [one for one in _known_values(subject) or () if isinstance(one, str)]
            message = f"{draft.key!r} is never the value, which is {display_type(subject)}"
            help = did_you_mean(draft.key, known)
            context.report.error("WF124", message, draft.key_span, help)
        return value

    def _check_exhaustive(self, subject: Type, cases: list[Case], context: Context) -> None:
        known = _known_values(subject)
        covered = {json_key(case.value) for case in cases}
        missing = [one for one in known or () if json_key(one) not in covered]
        if self.default is not None and self.default_span is not None:
            if known is not None and not missing:
                message = "'default' is never reached: the cases cover every value"
                context.report.warning("WF154", message, self.default_span, "remove it")
        elif known is None:
            if subject != join_types(()):
                message = f"'switch' on {display_type(subject)} needs a 'default'"
            else:
                message = "'switch' on a value of unknown type needs a 'default'"
            help = "let the step that decides answer with gen: { choice: [...] }"
            context.report.error("WF123", message, self.span, help)
        elif missing:
            shown = ", ".join(json.dumps(one, ensure_ascii=False) for one in missing[:8])
            message = f"'switch' has no case for {shown}"
            context.report.error("WF123", message, self.span, "add it, or add 'default'")


def parse_switch(name: str, step: MappingNode, context: Context) -> SwitchDraft | None:
    """Read a `switch` step."""
    entry, cases_entry, default = step.entry("switch"), step.entry("cases"), step.entry("default")
    assert entry is not None
    subject = expression_of(entry, context, "${ sentiment }")
    help = "cases are blocks by value: cases: { bug: { fix: … } }"
    if cases_entry is None:
        message = f"step {name!r} has 'switch' and no 'cases'"
        context.report.error("WF103", message, entry.key_span, help)
    mapping = None if cases_entry is None else mapping_of(cases_entry, context.report, help)
    cases: list[CaseDraft] = []
    for one in mapping.entries if mapping is not None else ():
        body = parse_inner_block(name, one, context)
        if body is not None:
            cases.append(CaseDraft(one.key, one.key_span, body))
    block = None if default is None else parse_inner_block(name, default, context)
    is_broken = mapping is None or len(cases) != len(mapping.entries)
    if subject is None or is_broken or (default is not None and block is None):
        return None
    default_span = None if default is None else default.key_span
    return SwitchDraft(subject, tuple(cases), block, default_span, entry.key_span)


def _value_of_key(key: str, subject: Type) -> JsonValue:
    """What a case's key means for a subject: a text wherever it may be one."""
    is_known = not any(isinstance(member, AnyType) for member in members_of(subject))
    if is_known and not may_be(subject, STRING):
        try:
            value = value_of_plain(key)
        except ScalarError:
            return key
        if may_be(subject, join_types((BOOLEAN, NUMBER))):
            return value
    return key


def _known_values(type_: Type) -> list[JsonValue] | None:
    """Every value of a type that has few; None of one that has many."""
    values: list[JsonValue] = []
    for member in members_of(type_):
        match member:
            case Choice():
                values += member.values
            case Scalar(kind="boolean"):
                values += [True, False]
            case Scalar(kind="null"):
                values.append(None)
            case _:
                return None
    return values
