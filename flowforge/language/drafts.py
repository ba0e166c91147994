"""A workflow between its two passes: shapes checked, names and types still open.

First every step is read into a draft, so that a step may refer to one further down; then names are
resolved, steps are put in order, and each draft becomes a part of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flowforge.language.program import JsonValue, Step, Verb
    from flowforge.language.schemas import SchemaProblem
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Source, Span
    from flowforge.language.template_parser import TemplateDraft
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry, MappingNode


class VerbDraft(Protocol):
    """What a step does, before names are resolved."""

    @property
    def has_conversation(self) -> bool:
        """Whether other steps may continue this one with `from`."""
        ...

    def references(self) -> Iterator[tuple[str, Span]]:
        """Names from outside the step that it uses, with their places."""
        ...

    def resolve(self, names: Names, context: Context) -> tuple[Verb, Type] | None:
        """The verb and the type of its value; None when a reported problem prevents it."""
        ...


@dataclass(frozen=True, slots=True)
class StepDraft:
    """A step; verb is None when it is broken, which is reported."""

    name: str
    name_span: Span
    verb: VerbDraft | None

    def references(self) -> Iterator[tuple[str, Span]]:
        """Names the step uses."""
        return iter(()) if self.verb is None else self.verb.references()


@dataclass(frozen=True, slots=True)
class BlockDraft:
    """Steps under one scope. result: what `yield:` says, None without it."""

    steps: Mapping[str, StepDraft]
    result: TemplateDraft | None
    span: Span


@dataclass(frozen=True, slots=True)
class Context:
    """What every check needs. enclosing: for a step inside a block, the step around it."""

    source: Source
    report: Report
    schema_checker: Callable[[JsonValue], list[SchemaProblem]] | None
    enclosing: dict[str, str]
    parse_steps: Callable[[Entry, Context], dict[str, StepDraft]]
    resolve_steps: Callable[[Mapping[str, StepDraft], Names, Context], dict[str, Step]]


class VerbParser(Protocol):
    """Reads a step's mapping into a draft; None when it is too broken, which is reported."""

    def __call__(self, name: str, step: MappingNode, context: Context) -> VerbDraft | None:
        """Read one step."""
        ...
