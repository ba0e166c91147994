"""The viewer as a child process, and the terminal as it was before, however that process ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_RESET = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l"  # the mouse
    "\x1b[?2004l\x1b[?1004l\x1b[?2026l\x1b[<u"  # pasting, focus, frames, keys
    "\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"  # the screen, the cursor, wrapping, colours
)


def is_terminal() -> bool:
    """Whether the viewer has a terminal to show itself on and to read keys from."""
    is_dumb = os.environ.get("TERM", "") in {"", "dumb"}
    # It draws on stderr: stdout is for results, and may be a file.
    return sys.stdin.isatty() and sys.stderr.isatty() and not is_dumb


def viewer_command(arguments: Sequence[str]) -> list[str]:
    """The command of the viewer's process."""
    return [sys.executable, "-m", "flowforge.tui", *arguments]


def view(arguments: Sequence[str]) -> int:
    """Run the viewer until it ends; returns its exit code.

    Raises EngineError EN712 when a signal ended it; the terminal is as before then, too.
    """
    with restored_terminal(), _without_interrupts():
        code = subprocess.run(viewer_command(arguments), check=False).returncode
    if code < 0:
        raise viewer_died(code)
    return code


async def view_beside(arguments: Sequence[str]) -> EngineError | None:
    """Run the viewer beside this process's own work; what to tell if a signal ended it."""
    import anyio

    with restored_terminal():
        command = viewer_command(arguments)
        async with await anyio.open_process(
            command, stdin=None, stdout=None, stderr=None
        ) as viewer:
            code = await viewer.wait()
    return viewer_died(code) if code < 0 else None


def viewer_died(code: int) -> EngineError:
    """What to tell of a viewer that a signal ended. code: minus the signal's number."""
    return EngineError(
        "EN712",
        f"the viewer was ended by {signal.Signals(-code).name}",
        help="runs go on without it; 'flowforge watch RUN' opens it again",
    )


@contextlib.contextmanager
def restored_terminal() -> Generator[None]:
    """Bring the terminal back into the state in which it is now, whatever a child did to it."""
    import termios

    descriptor = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        sys.stderr.write(_RESET)
        sys.stderr.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _without_interrupts() -> Generator[None]:
    """Ctrl-C is a key of the viewer's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
