"""A workflow file, read and checked: the way into the language."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.language.checker import check_program
from flowforge.language.diagnostics import Diagnostic, DiagnosticsError, sort_diagnostics
from flowforge.language.scope import Report
from flowforge.language.source import Source, Span
from flowforge.language.yaml_composer import compose

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.language.program import JsonValue, Program
    from flowforge.language.schemas import SchemaProblem

    SchemaChecker = Callable[[JsonValue], list[SchemaProblem]]

MAX_FILE_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class LoadResult:
    """program: None when a diagnostic is an error. diagnostics: in file order, with warnings."""

    program: Program | None
    diagnostics: tuple[Diagnostic, ...]


def load(path: str | Path, *, schema_checker: SchemaChecker | None = None) -> LoadResult:
    """Read and check a workflow file. Every problem is a diagnostic; nothing is raised."""
    file = str(path)
    try:
        # One byte more than allowed tells a file that is too large without reading all of it.
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        help = "check the path" if isinstance(error, FileNotFoundError) else None
        return _refused(Source(file, ""), "WF001", f"cannot read {file!r}: {reason}", 0, help)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(content) > MAX_FILE_BYTES:
            return _too_large(file)
        readable = content[: error.start].decode("utf-8")
        message = f"not UTF-8: byte 0x{content[error.start]:02x} at position {error.start}"
        source = Source(file, readable + "\ufffd")
        return _refused(source, "WF002", message, len(readable), "save the file as UTF-8")
    return load_text(text, file, schema_checker=schema_checker)


def load_text(
    text: str, file: str = "<text>", *, schema_checker: SchemaChecker | None = None
) -> LoadResult:
    """Check a workflow given as text; `file` is its name in diagnostics. Nothing is raised."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_FILE_BYTES or len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
        return _too_large(file)
    source = Source(file, text)
    composed = compose(source)
    report = Report(source, composed.diagnostics)
    program = None
    if composed.root is not None:
        program = check_program(composed.root, report, schema_checker)
    diagnostics = sort_diagnostics(report.diagnostics)
    is_broken = any(one.severity == "error" for one in diagnostics)
    return LoadResult(None if is_broken else program, diagnostics)


def require_program(result: LoadResult) -> Program:
    """The program. Raises DiagnosticsError with every problem when there is none."""
    if result.program is None:
        raise DiagnosticsError(result.diagnostics)
    return result.program


def _too_large(file: str) -> LoadResult:
    message = f"the file is larger than {MAX_FILE_BYTES:,} bytes"
    return _refused(Source(file, ""), "WF003", message, 0, "split the workflow")


def _refused(source: Source, code: str, message: str, start: int, help: str | None) -> LoadResult:
    span = Span(start, start + 1)
    return LoadResult(None, (Diagnostic(code, "error", message, source, span, help),))
