"""Problems of a workflow file, shown as a compiler shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flowforge.language.source import Source, Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem at one place.

    help: how to fix it; shown beside the caret. notes: further lines, for example a second place.
    """

    code: str
    severity: Severity
    message: str
    source: Source
    span: Span
    help: str | None = None
    notes: tuple[str, ...] = ()
