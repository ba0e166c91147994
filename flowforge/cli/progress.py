"""What a person sees of a run on stderr: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from flowforge.view.event_lines import step_line

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from flowforge.runtime.events import Event


class Progress(Protocol):
    """A view of a run that is entered before the run and left after it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, event: Event) -> None:
        """Take one event in; cheap, called for every one."""
        ...

    def refresh(self) -> None:
        """Draw what has changed; called some times a second."""
        ...

    def note(self, line: str) -> None:
        """A line of its own beside the events."""
        ...

    def suspended(self) -> AbstractContextManager[None]:
        """Leave the terminal to a question for as long as the block lasts."""
        ...


def choose_progress(*, is_quiet: bool) -> Progress:
    """The view that suits stderr."""
    if is_quiet:
        return NoProgress()
    if sys.stderr.isatty():
        from flowforge.cli.live import LiveProgress, terminal_console

        console = terminal_console()
        if console is not None:
            return LiveProgress(console)
    return PlainProgress()


class NoProgress:
    """Shows nothing but notes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def show(self, event: Event) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Nothing."""

    def suspended(self) -> AbstractContextManager[None]:
        """Nothing to take away."""
        return nullcontext()

    def note(self, line: str) -> None:
        """One line on stderr."""
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class PlainProgress(NoProgress):
    """One line per start and end of a step: for pipes, logs and CI."""

    def show(self, event: Event) -> None:
        """A line, if the event is about a step's start or end."""
        line = step_line(event.fact)
        if line is not None:
            self.note(line)
