"""The live view of a run: a line per running step with its tokens, its rate and its latest words.

Finished steps scroll up as lines of their own. Drawn only by `refresh`, on the event loop's thread,
so frames are whole and nothing flickers; the height stays within the terminal's.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
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
    StepStarted,
    StepText,
)
from flowforge.view.event_lines import step_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Self

    from rich.console import RenderableType

    from flowforge.runtime.events import Event

_TAIL_CHARS = 4000
_NUM_TEXT_LINES = 6


def terminal_console() -> Console | None:
    """A console on stderr, or None where lines cannot be redrawn (TERM=dumb)."""
    console = Console(stderr=True, highlight=False)
    return None if console.is_dumb_terminal or not console.is_terminal else console


@dataclass(slots=True)
class _Row:
    path: str
    num_tokens: int = 0
    first_s: float | None = None
    tail: str = ""

    def take(self, text: StepText, now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
        self.num_tokens += text.num_tokens
        self.tail = (self.tail + text.text)[-_TAIL_CHARS:]

    def rate(self, now_s: float) -> str:
        if self.first_s is None or self.num_tokens < 2 or now_s <= self.first_s:
            return ""
        return f"{(self.num_tokens - 1) / (now_s - self.first_s):.1f} tok/s"


class LiveProgress:
    """Owns the terminal's last lines while it is entered. clock: seconds, as the run's."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._rows: dict[str, _Row] = {}
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
        self._rows.clear()
        self._live.update(Text(""), refresh=True)
        self._live.stop()

    def show(self, event: Event) -> None:
        """Count a text, or let a line about a step's end scroll up."""
        match event.fact:
            case StepStarted(path, verb):
                if verb == "gen":
                    self._rows[path] = _Row(path)
            case StepText(path):
                self._rows.setdefault(path, _Row(path)).take(event.fact, self._clock())
            case (
                StepFinished(path)
                | StepFailed(path)
                | StepCancelled(path)
                | StepRetried(path)
                | StepCaught(path)
                | StepSkipped(path)
            ):
                self._rows.pop(path, None)
                self._console.print(_ended(event))
            case _:
                pass

    def refresh(self) -> None:
        """Draw the running steps, unless a question has the terminal."""
        if self._is_suspended:
            return
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
        self._console.print(Text(line))

    def render(self) -> RenderableType:
        """The running steps, within the height and width of the terminal."""
        width, height = self._console.size
        rows = list(self._rows.values())
        num_shown = max(1, min(len(rows), height - 3))
        lines = [self._row_line(row, width, with_tail=len(rows) > 1) for row in rows[:num_shown]]
        if len(rows) > num_shown:
            lines.append(Text(f"… and {len(rows) - num_shown} more", style="dim"))
        if len(rows) == 1:
            num_lines = max(1, min(_NUM_TEXT_LINES, height - 3))
            lines += [
                Text("  " + line, style="dim", no_wrap=True)
                for line in _last_lines(rows[0].tail, width - 3, num_lines)
            ]
        return Group(*lines)

    def _row_line(self, row: _Row, width: int, *, with_tail: bool) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        line.append(row.path, style="bold cyan")
        if row.num_tokens:
            line.append(f"  {row.num_tokens:>5,} tok  {row.rate(self._clock()):>11}")
        else:
            line.append("  reading the prompt", style="dim")
        room = width - line.cell_len - 3
        if with_tail and row.tail and room > 10:
            line.append("  " + _last_cells(row.tail, room), style="dim")
        return line


def _ended(event: Event) -> Text:
    line = step_line(event.fact) or ""
    match event.fact:
        case StepFailed():
            return Text(f"✗ {line}", style="red")
        case StepCancelled() | StepSkipped() | StepRetried() | StepCaught():
            return Text(f"- {line}", style="yellow")
        case _:
            path, _, rest = line.partition(": ")
            return Text.assemble(("✓ ", "green"), (path, "bold"), f": {rest}")


def _last_cells(text: str, width: int) -> str:
    """The end of a text on one line, at most `width` terminal cells wide."""
    flat = " ".join(_printable(text).split())[-width:]
    while cell_len(flat) > width:
        flat = flat[1:]
    return flat


def _last_lines(text: str, width: int, num_lines: int) -> list[str]:
    """The last lines of a text, folded at `width` terminal cells."""
    folded: list[str] = []
    for line in _printable(text).split("\n"):
        rest = line
        while cell_len(rest) > width:
            piece = rest[:width]
            while cell_len(piece) > width:
                piece = piece[:-1]
            cut = piece.rfind(" ") + 1 or len(piece)
            folded.append(rest[:cut].rstrip())
            rest = rest[cut:]
        folded.append(rest)
    return folded[-num_lines:]


def _printable(text: str) -> str:
    """Model text must not move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def show_cursor() -> None:
    """Give the cursor back before a process ends at once."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")
        sys.stderr.flush()
