"""An expression of the workflow language, checked and ready to be evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from flowforge.errors import WorkflowError
from flowforge.language.evaluation import evaluate_node
from flowforge.language.json_values import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.errors import Location
    from flowforge.language.expression_nodes import Node
    from flowforge.language.program import JsonValue
    from flowforge.language.types import Type

# What names mean while a step runs: "inputs" (an object of all inputs), steps with their values,
# loop variables. A nested block sees its own names and those around it: `{**outer, **own}`.
# Filters on tokens need a MeasuredScope, which says who counts.
Scope: TypeAlias = "Mapping[str, JsonValue]"


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression. names: what it reads of a scope. text: as the author wrote it."""

    text: str
    node: Node = field(repr=False)
    type: Type
    names: frozenset[str]
    location: Location

    def evaluate(self, scope: Scope) -> JsonValue:
        """The value; always ends, has no effect, never changes what is in the scope.

        Raises WorkflowError WF4xx when a value does not allow what the expression asks of it.
        """
        try:
            return evaluate_node(self.node, scope)
        except EvaluationError as error:
            raise self.error(error.code, error.message, error.help) from error

    def error(self, code: str, message: str, help: str | None) -> WorkflowError:
        """An error about this expression, with its place."""
        return WorkflowError(
            code, f"{message}, in '{self.text}'", location=self.location, help=help
        )
