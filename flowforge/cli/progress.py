"""What a person sees of a run on stderr: a live view in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from flowforge import environment
from flowforge.cli.printing import print_note
from flowforge.view.event_lines import step_line, weight_of
from flowforge.view.printable import one_line
from flowforge.view.run_view import RunView
from flowforge.view.texts import tokens_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from flowforge.cli.options import Display
    from flowforge.runtime.events import Event
    from flowforge.view.event_lines import Weight


_PROGRESS_INTERVAL_S = 5.0
"""How often a step that goes on gets a line where lines are only added."""


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


def choose_progress(display: Display) -> Progress:
    """The view that was asked for, or the plain one where a terminal cannot show it.

    display: "json" and "none" show nothing here; "tui" shows what comes after the viewer.
    """
    match display:
        case "json" | "none":
            return NoProgress()
        case "log":
            return LogProgress()
        case "plain":
            return PlainProgress()
        case "auto" | "live" | "tui":
            return _live_or_plain(is_asked_for=display == "live")


def _live_or_plain(*, is_asked_for: bool) -> Progress:
    if sys.stderr.isatty() and (is_asked_for or not environment.CI.is_set):
        from flowforge.cli.live import LiveProgress, terminal_console

        console = terminal_console()
        if console is not None:
            return LiveProgress(console)
    progress = PlainProgress()
    if is_asked_for:
        progress.note("stderr is no terminal where lines can be redrawn: showing plain lines")
    return progress


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
        print_note(line)


class PlainProgress(NoProgress):
    """One line per start and end of a step, and now and then one for a step that goes on.

    For pipes, CI and screen readers: lines are only added, and nothing is drawn.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._view = RunView()
        self._told_at_s: dict[str, float] = {}

    def show(self, event: Event) -> None:
        """A line, if the event is about a step's start or end."""
        self._view.take(event)
        line = step_line(event.fact)
        if line is None:
            return
        path = getattr(event.fact, "path", None)
        if path is not None:
            self._told_at_s[path] = self._clock()
        self.write(one_line(line), weight_of(event.fact))

    def refresh(self) -> None:
        """A line for each step that a model has been writing for a while."""
        now_s = self._clock()
        for path, step in self._view.picture.steps.items():
            text = self._view.texts.get(path)
            if step.ended_s is not None:
                self._told_at_s.pop(path, None)
            elif (
                text is not None
                and now_s - self._told_at_s.get(path, now_s) >= _PROGRESS_INTERVAL_S
            ):
                self._told_at_s[path] = now_s
                self.write(f"{path}: writing, {tokens_text(text.num_tokens)} so far", "plain")

    def write(self, line: str, weight: Weight) -> None:
        """Put a line out. weight: how much it asks to be looked at."""
        self.note(line)


class LogProgress(PlainProgress):
    """The same lines as a log has them, with the time and a level."""

    def write(self, line: str, weight: Weight) -> None:
        """A line with its time and level."""
        level = {"error": "ERROR", "warning": "WARNING", "question": "WARNING"}.get(weight, "INFO")
        moment = datetime.now().astimezone().isoformat(timespec="seconds")
        self.note(f"{moment} {level} {line}")
