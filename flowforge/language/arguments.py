"""Arguments by name, as `with:` gives them to a tool or to another workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.secrets import with_secrets
from flowforge.language.types import ANY, display_type, may_be, may_be_null
from flowforge.language.value_drafts import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.drafts import Context
    from flowforge.language.expressions import Expression
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Span
    from flowforge.language.types import Field, Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import Entry


@dataclass(frozen=True, slots=True)
class ArgumentsDraft:
    """Arguments before names are resolved. span: where to say that one is missing."""

    values: Mapping[str, ValueDraft]
    span: Span

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the arguments read."""
        for value in self.values.values():
            yield from value.names()

    def typed(self, names: Names, report: Report) -> dict[str, Expression]:
        """The arguments."""
        return {name: value.typed(names, report) for name, value in self.values.items()}

    def check(
        self,
        arguments: Mapping[str, Expression],
        known: Mapping[str, Field],
        owner: str,
        report: Report,
    ) -> None:
        """Report arguments that are unknown, missing or of the wrong type."""
        for name, argument in arguments.items():
            span = self.values[name].span
            if name in known:
                _check_type(argument.type, known[name], owner, span, report)
                continue
            otherwise = f"it takes: {', '.join(known)}" if known else "it takes none"
            help = did_you_mean(name, known, otherwise)
            report.error("WF128", f"{owner} takes no argument {name!r}", span, help)
        for field in known.values():
            if field.is_required and field.name not in arguments:
                message = f"argument {field.name!r} ({display_type(field.type)}) of {owner}"
                help = f"add with: {{ {field.name}: … }}"
                report.error("WF129", f"{message} is missing", self.span, help)


@dataclass(frozen=True, slots=True)
class ArgumentsAlone:
    """A step whose arguments are for nothing that is there, which is reported; they are checked.

    secrets: names of those that the arguments may hold; None where none may stand.
    """

    arguments: ArgumentsDraft
    secrets: tuple[str, ...] | None = None
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the arguments read."""
        return self.arguments.references()

    def resolve(self, names: Names, context: Context) -> None:
        """No verb; what is wrong within the arguments is reported."""
        if self.secrets is not None:
            names = with_secrets(names, self.secrets)
        self.arguments.typed(names, context.report)


def parse_arguments(owner: Entry, given: Entry | None, context: Context) -> ArgumentsDraft:
    """Read `with:`, which stands beside the key `owner`."""
    return ArgumentsDraft(values_of(given, context, "write with: { name: value }"), owner.key_span)


def _check_type(type_: Type, field: Field, owner: str, span: Span, report: Report) -> None:
    is_possible = may_be(type_, field.type)
    takes_null = may_be_null(field.type) or field.type == ANY
    if is_possible and (takes_null or not may_be_null(type_)):
        return
    expected, got = display_type(field.type), display_type(type_)
    message = f"argument {field.name!r} of {owner} expects {expected}, got {got}"
    help = "say what it is instead of null: … ?? …" if is_possible else None
    report.error("WF130", message, span, help)
