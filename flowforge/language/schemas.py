"""What a checker of JSON Schemas reports; the language gives each problem its place in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.language.program import JsonValue

SchemaUse: TypeAlias = Literal["error", "relax", "judge"]
"""What a schema is for: to hold an answer to it, refusing or relaxing what cannot be enforced, or
only to judge values."""


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """One problem. pointer: JSON pointer to the part of the schema at fault, "" for the whole.

    message: lower case, no full stop. severity "warning" lets the workflow run.
    """

    pointer: str
    message: str
    severity: Literal["error", "warning"] = "error"
    help: str | None = None


SchemaChecker: TypeAlias = "Callable[[JsonValue, SchemaUse], list[SchemaProblem]]"
