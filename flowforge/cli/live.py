"""The live view of a run: a line per running step with its tokens, its rate and its latest words.

Finished steps scroll up as lines of their own. Drawn only by `refresh`, on the event loop's thread,
so frames are whole and nothing flickers; the height stays within the terminal's.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flowforge.runtime.events import (
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepRetried,
    StepSkipped,
)
from flowforge.view.event_lines import step_line
from flowforge.view.printable import first_cells, folded, last_cells, one_line, printable
from flowforge.view.run_view import RunView
from flowforge.view.texts import clock_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Self

    from rich.console import RenderableType

    from flowforge.runtime.events import Event, Fact
    from flowforge.runtime.picture import StepPicture

_TAIL_CHARS = 4000
_NUM_TEXT_LINES = 6
_ENDS = (StepFinished, StepFailed, StepCancelled, StepRetried, StepCaught, StepSkipped)


def terminal_console() -> Console | None:
    """A console on stderr, or None where lines cannot be redrawn (TERM=dumb)."""
    console = Console(stderr=True, highlight=False)
    return None if console.is_dumb_terminal or not console.is_terminal else console


class LiveProgress:
    """Owns the terminal's last lines while it is entered."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._console = console
        self._clock = clock
        self._looked_at_s = clock()
        self._view = RunView()
        self._told_helps: set[tuple[str, str]] = set()
        self._is_left = False
        self._is_suspended = False
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            # Results go to stdout after the view is gone; redirecting it would send them to stderr.
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_left = True
        self._live.update(Text(""), refresh=True)
        self._live.stop()

    def show(self, event: Event) -> None:
        """Count a text, or let a line about a step's end scroll up."""
        self._view.take(event)
        self._looked_at_s = self._clock()
        fact = event.fact
        if isinstance(fact, _ENDS):
            self._console.print(_ended(fact))
        if isinstance(fact, StepFailed):
            self._tell_help(fact)

    def _tell_help(self, fact: StepFailed) -> None:
        # Once for a kind: branches mostly fail alike, and what holds them fails by the first.
        if fact.help is not None and (fact.code, fact.help) not in self._told_helps:
            self._told_helps.add((fact.code, fact.help))
            self._console.print(Text(f"  help: {one_line(fact.help)}"))

    def refresh(self) -> None:
        """Draw the running steps, unless a question has the terminal."""
        if self._is_suspended or self._is_left:
            return
        # Rates and times go on while a run tells nothing.
        now_s = self._clock()
        self._view.take_time(self._view.time_s + now_s - self._looked_at_s)
        self._looked_at_s = now_s
        self._live.update(self.render(), refresh=True)

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Take the running steps off the terminal."""
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        self._is_suspended = True
        try:
            yield
        finally:
            self._is_suspended = False
            self._live.start()

    def note(self, line: str) -> None:
        """A line above the running steps."""
        self._console.print(Text(printable(line)))

    def render(self) -> RenderableType:
        """The running steps and a line about the run, within the height and width."""
        width, height = self._console.size
        steps = self._running()
        if not steps:
            return Group()
        room = max(1, height - 4)
        num_shown = min(len(steps), room)
        lines = [self._row(step, width, with_tail=len(steps) > 1) for step in steps[:num_shown]]
        if len(steps) > num_shown:
            lines.append(Text(f"… and {len(steps) - num_shown} more", style="dim"))
        if len(steps) == 1:
            lines += self._last_lines(steps[0], width - 3, max(1, min(_NUM_TEXT_LINES, room - 1)))
        if height > 6:
            lines.append(self._status_line(width))
        return Group(*lines)

    def _running(self) -> list[StepPicture]:
        return [
            step
            for step in self._view.picture.steps.values()
            if step.ended_s is None and (step.verb == "gen" or step.status == "asking")
        ]

    def _row(self, step: StepPicture, width: int, *, with_tail: bool) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        line.append(step.path, style="bold cyan")
        text = self._view.texts.get(step.path)
        if step.status == "asking" or text is None or not text.num_tokens:
            line.append(f"  {self._view.activity_of(step)}", style="dim")
            return line
        rate = "" if text.rate is None else f"{text.rate:.1f} tok/s"
        line.append(f"  {text.num_tokens:>5,} tok  {rate:>11}")
        room = width - line.cell_len - 3
        if with_tail and room > 10:
            tail = last_cells(text.since(text.end - _TAIL_CHARS), room)
            line.append("  " + tail, style="dim")
        return line

    def _last_lines(self, step: StepPicture, width: int, num_lines: int) -> list[Text]:
        text = self._view.texts.get(step.path)
        if text is None:
            return []
        tail = printable(text.since(text.end - _TAIL_CHARS))
        shown = [*folded(tail, width)][-num_lines:]
        return [Text("  " + line, style="dim", no_wrap=True) for line in shown]

    def _status_line(self, width: int) -> Text:
        view = self._view
        parts = [f"{view.num_ended} of {len(view.picture.steps)} steps", clock_text(view.time_s)]
        if view.tokens_per_s() >= 0.5:
            parts.insert(1, f"{view.tokens_per_s():.0f} tok/s")
        if view.questions:
            parts.append(f"{len(view.questions)} waiting for an answer")
        return Text("  " + first_cells(" · ".join(parts), width - 2), style="dim", no_wrap=True)


def _ended(fact: Fact) -> Text:
    line = one_line(step_line(fact) or "")
    match fact:
        case StepFailed():
            return Text(f"✗ {line}", style="red")
        case StepCancelled() | StepSkipped() | StepRetried() | StepCaught():
            return Text(f"- {line}", style="yellow")
        case _:
            path, _, rest = line.partition(": ")
            return Text.assemble(("✓ ", "green"), (path, "bold"), f": {rest}")


def show_cursor() -> None:
    """Give the cursor back before a process ends at once."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")
        sys.stderr.flush()
