"""A workflow file, read and checked: the way into the language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.language.diagnostics import Diagnostic
    from flowforge.language.program import JsonValue, Program
    from flowforge.language.schemas import SchemaProblem

    SchemaChecker = Callable[[JsonValue], list[SchemaProblem]]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """program: None when a diagnostic is an error. diagnostics: in file order, with warnings."""

    program: Program | None
    diagnostics: tuple[Diagnostic, ...]


def load(path: str | Path, *, schema_checker: SchemaChecker | None = None) -> LoadResult:
    """Read and check a workflow file. Every problem is a diagnostic; nothing is raised."""
    raise NotImplementedError


def load_text(
    text: str, file: str = "<text>", *, schema_checker: SchemaChecker | None = None
) -> LoadResult:
    """Check a workflow given as text; `file` is its name in diagnostics. Nothing is raised."""
    raise NotImplementedError


def require_program(result: LoadResult) -> Program:
    """The program. Raises DiagnosticsError with every problem when there is none."""
    raise NotImplementedError
