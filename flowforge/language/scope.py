"""Names while a workflow is checked, and the collected diagnostics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from flowforge.language.diagnostics import Diagnostic

if TYPE_CHECKING:
    from flowforge.language.source import Source, Span
    from flowforge.language.types import Type

BindingKind = Literal["inputs", "secrets", "step", "variable"]


@dataclass(slots=True)
class Binding:
    """What a name stands for. has_conversation: whether `from` may continue it.

    may_lack_conversation: a step that may be skipped or caught leaves nothing to continue then.
    model: on which the conversation is, None for the run's own.
    """

    kind: BindingKind
    type: Type
    has_conversation: bool = False
    may_lack_conversation: bool = False
    model: str | None = None


@dataclass(slots=True)
class Names:
    """The names of one block, and of the blocks around it."""

    own: dict[str, Binding]
    outer: Names | None = None

    def find(self, name: str) -> Binding | None:
        """The innermost meaning of a name."""
        if name in self.own:
            return self.own[name]
        return None if self.outer is None else self.outer.find(name)

    def visible(self) -> dict[str, Binding]:
        """Every name in scope."""
        return {**({} if self.outer is None else self.outer.visible()), **self.own}


@dataclass(slots=True)
class Report:
    """Collects the diagnostics of one source."""

    source: Source
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        help: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Add a problem that keeps the workflow from running."""
        self.diagnostics.append(Diagnostic(code, "error", message, self.source, span, help, notes))

    def warning(self, code: str, message: str, span: Span, help: str | None = None) -> None:
        """Add a problem that does not."""
        self.diagnostics.append(Diagnostic(code, "warning", message, self.source, span, help))
