"""A workflow between its two passes: shapes checked, names and types still open.

First every step is read into a draft, so that a step may refer to one further down; then names are
resolved, steps are put in order, and each draft becomes a part of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from flowforge.language.scope import Report
from flowforge.language.value_drafts import outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from flowforge.language.answer_grammars import GrammarChecker
    from flowforge.language.checkers import RegexChecker
    from flowforge.language.common_keys import CommonDraft
    from flowforge.language.defaults import Defaults
    from flowforge.language.named_types import NamedTypes
    from flowforge.language.program import Step, ToolSpec, Verb
    from flowforge.language.schemas import SchemaChecker
    from flowforge.language.scope import Names
    from flowforge.language.source import Source, Span
    from flowforge.language.subflows import Subflows
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
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
    common: CommonDraft | None

    def references(self) -> Iterator[tuple[str, Span]]:
        """Names the step uses."""
        if self.verb is not None:
            yield from self.verb.references()
        if self.common is not None:
            yield from self.common.references()


@dataclass(frozen=True, slots=True)
class BlockDraft:
    """Steps under one scope. result: what `yield:` says, None without it.

    has_value: false for a block that runs for its effects only.
    """

    steps: Mapping[str, StepDraft]
    result: ValueDraft | None
    span: Span
    has_value: bool = True

    def references(self, inner: Iterable[str] = ()) -> Iterator[tuple[str, Span]]:
        """Names from outside that the block uses. inner: names it has besides its steps."""
        known = {*inner, *self.steps}
        for step in self.steps.values():
            yield from outside(step.references(), known)
        if self.result is not None:
            yield from outside(self.result.names(), known)


@dataclass(frozen=True, slots=True)
class Context:
    """What every check needs. enclosing: for a step inside a block, the step around it.

    secrets: names of those that calls may be given. models: names of models that other servers run
    (`remote/…`, `route/…`), None where they are not known. is_trial: names are resolved only to
    learn types, and what is reported is dropped.
    """

    source: Source
    report: Report
    schema_checker: SchemaChecker | None
    grammar_checker: GrammarChecker | None
    enclosing: dict[str, str]
    types: NamedTypes
    tools: Mapping[str, ToolSpec]
    defaults: Defaults
    subflows: Subflows
    parse_steps: Callable[[Entry, Context], dict[str, StepDraft]]
    parse_step: Callable[[Entry, Context], StepDraft]
    resolve_steps: Callable[[Mapping[str, StepDraft], Names, Context], dict[str, Step]]
    secrets: tuple[str, ...] = ()
    models: frozenset[str] | None = None
    regex_checker: RegexChecker | None = None
    is_trial: bool = False

    @property
    def model_of_silent_steps(self) -> str | None:
        """The model of steps that name none.

        The default of the outermost file is the run's own model, which the run may overrule; that
        of a workflow it runs stands as it is written.
        """
        return self.defaults.model if len(self.subflows.chain) > 1 else None

    def for_trial(self) -> Context:
        """The same with a report of its own."""
        return replace(self, report=Report(self.source), is_trial=True)


class VerbParser(Protocol):
    """Reads a step's mapping into a draft; None when it is too broken, which is reported."""

    def __call__(self, name: str, step: MappingNode, context: Context) -> VerbDraft | None:
        """Read one step."""
        ...
