"""The verb `run`: another workflow as one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.arguments import ArgumentsAlone, parse_arguments
from flowforge.language.fields import place_of, text_of
from flowforge.language.program import Required, Run
from flowforge.language.types import Field, Object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.arguments import ArgumentsDraft
    from flowforge.language.drafts import Context
    from flowforge.language.program import Program
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("run", "with")


@dataclass(frozen=True, slots=True)
class RunDraft:
    """A `run` step before names are resolved."""

    program: Program
    arguments: ArgumentsDraft
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the arguments read."""
        return self.arguments.references()

    def resolve(self, names: Names, context: Context) -> tuple[Run, Type] | None:
        """The verb, and the object of the workflow's outputs."""
        arguments = self.arguments.typed(names, context.report)
        known = {
            name: Field(name, one.type, isinstance(one.default, Required))
            for name, one in self.program.inputs.items()
        }
        owner = f"workflow {self.program.name!r}"
        self.arguments.check(arguments, known, owner, context.report)
        outputs = self.program.outputs.items()
        fields = tuple(Field(name, output.value.type, True) for name, output in outputs)
        return Run(self.program, arguments), Object(fields, None)


def parse_run(name: str, step: MappingNode, context: Context) -> RunDraft | ArgumentsAlone:
    """Read a `run` step, and the workflow that it names."""
    del name
    entry = step.entry("run")
    assert entry is not None
    arguments = parse_arguments(entry, step.entry("with"), context)
    path = text_of(entry, context.report)
    if path is None:
        return ArgumentsAlone(arguments)
    program = context.subflows.load(path, place_of(entry, context.report), context.report)
    return ArgumentsAlone(arguments) if program is None else RunDraft(program, arguments)
