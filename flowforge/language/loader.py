"""A workflow file, read and checked: the way into the language."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.language.checker import check_program
from flowforge.language.checkers import NO_CHECKERS, Checkers
from flowforge.language.diagnostics import Diagnostic, DiagnosticsError, sort_diagnostics
from flowforge.language.scope import Report
from flowforge.language.source import Source, Span
from flowforge.language.subflows import Subflows
from flowforge.language.warnings import add_warnings
from flowforge.language.yaml_document import read_document

if TYPE_CHECKING:
    from flowforge.language.program import Program
    from flowforge.language.subflows import Reader

MAX_FILE_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class LoadResult:
    """program: None when a diagnostic is an error. diagnostics: in file order, with warnings."""

    program: Program | None
    diagnostics: tuple[Diagnostic, ...]


def load(path: str | Path, *, checkers: Checkers = NO_CHECKERS) -> LoadResult:
    """Read and check a workflow file. Every problem is a diagnostic; nothing is raised."""
    given = Path(path)
    try:
        folder = given.parent.resolve()
        reader = _reader(checkers)
        subflows = Subflows(reader, folder, folder, (folder / given.name,))
    except (OSError, ValueError, RuntimeError):
        subflows = Subflows(_reader(checkers))
    return _load(given, str(path), checkers, subflows)


def load_text(text: str, file: str = "<text>", *, checkers: Checkers = NO_CHECKERS) -> LoadResult:
    """Check a workflow given as text; `file` is its name in diagnostics. Nothing is raised.

    Having no folder, it cannot run other workflows.
    """
    return _load_text(text, file, checkers, Subflows(_reader(checkers)))


def require_program(result: LoadResult) -> Program:
    """The program. Raises DiagnosticsError with every problem when there is none."""
    if result.program is None:
        raise DiagnosticsError(result.diagnostics)
    return result.program


def _reader(checkers: Checkers) -> Reader:
    def read(
        path: Path, file: str, subflows: Subflows
    ) -> tuple[Program | None, tuple[Diagnostic, ...]]:
        result = _load(path, file, checkers, subflows)
        return result.program, result.diagnostics

    return read


def _load(path: Path, file: str, checkers: Checkers, subflows: Subflows) -> LoadResult:
    try:
        # One byte more than allowed tells a file that is too large without reading all of it.
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        help = _help_for(error)
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
    return _load_text(text, file, checkers, subflows)


def _help_for(error: Exception) -> str | None:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "check the path"
        case IsADirectoryError():
            return "give a workflow file in that directory"
        case PermissionError():
            return "give yourself the right to read it"
        case _:
            return None


def _load_text(text: str, file: str, checkers: Checkers, subflows: Subflows) -> LoadResult:
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_FILE_BYTES or len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
        return _too_large(file)
    source = Source(file, text)
    composed = read_document(source)
    report = Report(source, composed.diagnostics)
    program = None
    if composed.root is not None:
        program = check_program(composed.root, report, checkers, subflows)
    is_broken = any(one.severity == "error" for one in report.diagnostics)
    if program is not None and not is_broken:
        add_warnings(program, report)
    diagnostics = sort_diagnostics(report.diagnostics)
    is_outermost = len(subflows.chain) < 2
    inner = tuple(subflows.diagnostics) if is_outermost else ()
    return LoadResult(None if is_broken else program, (*diagnostics, *inner))


def _too_large(file: str) -> LoadResult:
    message = f"the file is larger than {MAX_FILE_BYTES:,} bytes"
    return _refused(Source(file, ""), "WF003", message, 0, "split the workflow")


def _refused(source: Source, code: str, message: str, start: int, help: str | None) -> LoadResult:
    span = Span(start, start + 1)
    return LoadResult(None, (Diagnostic(code, "error", message, source, span, help),))
