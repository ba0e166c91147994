"""Workflows that a workflow runs: where their files may lie, and that none runs itself."""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.language.diagnostics import Diagnostic
    from flowforge.language.program import Program
    from flowforge.language.scope import Report
    from flowforge.language.source import Span

    Reader = Callable[[Path, str, "Subflows"], tuple[Program | None, tuple[Diagnostic, ...]]]

MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Subflows:
    """Loads each file once. folder: of the workflow that is checked; None if it has no file.

    root: the folder of the outermost workflow, outside which nothing is read. chain: the files
    from the outermost workflow to this one. diagnostics: of all files but the outermost.
    """

    read: Reader
    folder: Path | None = None
    root: Path | None = None
    chain: tuple[Path, ...] = ()
    loaded: dict[Path, tuple[Program | None, int]] = field(
        default_factory=dict[Path, "tuple[Program | None, int]"]
    )
    diagnostics: list[Diagnostic] = field(default_factory=list["Diagnostic"])

    def load(self, text: str, span: Span, report: Report) -> Program | None:
        """The program of the file that a step names; None after a reported problem."""
        target = self._target(text, span, report)
        if target is None:
            return None
        if target in self.chain:
            cycle = [*self.chain[self.chain.index(target) :], target]
            shown = " → ".join(self._shown(file) for file in cycle)
            message = f"the workflow runs itself: {shown}"
            report.error("WF126", message, span, "repeat steps with 'loop'")
            return None
        if len(self.chain) >= MAX_DEPTH:
            message = f"workflows run each other more than {MAX_DEPTH} deep"
            report.error("WF127", message, span)
            return None
        if target not in self.loaded:
            name = os.path.normpath(Path(report.source.file).parent / text)
            inner = replace(self, folder=target.parent, chain=(*self.chain, target))
            program, diagnostics = self.read(target, name, inner)
            self.diagnostics.extend(diagnostics)
            num_errors = sum(one.severity == "error" for one in diagnostics)
            self.loaded[target] = (program, num_errors)
        program, num_errors = self.loaded[target]
        if program is None:
            errors = f"{num_errors} error{'' if num_errors == 1 else 's'}"
            message = f"workflow {text!r} cannot be run: it has {errors}"
            report.error("WF127", message, span)
        return program

    def _target(self, text: str, span: Span, report: Report) -> Path | None:
        if self.folder is None or self.root is None:
            message = f"{text!r} cannot be found: this workflow was not read from a file"
            help = "save the workflow beside the ones that it runs"
            report.error("WF127", message, span, help)
            return None
        try:
            is_plain = "\\" not in text and not Path(text).is_absolute()
            target = (self.folder / text).resolve()
            is_inside = is_plain and target.is_relative_to(self.root)
        except (OSError, ValueError, RuntimeError):
            report.error("WF127", f"{text[:60]!r} is no path of a file", span)
            return None
        if not is_inside:
            message = f"{text!r} is outside the workflow folder"
            help = f"it has to lie in the folder of {self._shown(self.chain[0])!r}, or below"
            report.error("WF125", message, span, help)
            return None
        return target

    def _shown(self, file: Path) -> str:
        assert self.root is not None
        is_inside = file.is_relative_to(self.root)
        return str(file.relative_to(self.root)) if is_inside else file.name
