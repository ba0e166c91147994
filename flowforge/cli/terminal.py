"""The viewer as a child process, and the terminal as it was before, however that process ended."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from flowforge import environment
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Self

    import anyio
    from anyio.abc import Process

_LEAVE_S = 3.0
"""How long a viewer that was told to end may take."""

_RESET = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l"  # the mouse
    "\x1b[?2004l\x1b[?1004l\x1b[?2026l\x1b[<u"  # pasting, focus, frames, keys
    "\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"  # the screen, the cursor, wrapping, colours
)


def is_terminal() -> bool:
    """Whether the viewer has a terminal to show itself on and to read keys from."""
    is_dumb = environment.TERM.text() in {"", "dumb"}
    # It draws on stderr: stdout is for results, and may be a file.
    return sys.stdin.isatty() and sys.stderr.isatty() and not is_dumb


def viewer_command(arguments: Sequence[str]) -> list[str]:
    """The command of the viewer's process."""
    return [sys.executable, "-m", "flowforge.tui", *arguments]


def view(arguments: Sequence[str]) -> int:
    """Run the viewer until it ends; returns its exit code. SIGTERM and SIGHUP are passed on to it.

    Raises EngineError EN712 when a signal ended it; the terminal is as before then, too.
    """
    with restored_terminal(), _Signals() as signals:
        viewer = subprocess.Popen(viewer_command(arguments))
        signals.pass_on_to(viewer)
        code = viewer.wait()
    if code < 0:
        raise viewer_died(code)
    return code


async def view_beside(arguments: Sequence[str], leave: anyio.Event) -> EngineError | None:
    """Run the viewer beside this process's own work; what to tell if a signal ended it.

    leave: ends the viewer.
    """
    import anyio

    async def end(viewer: Process, scope: anyio.CancelScope) -> None:
        await leave.wait()
        viewer.terminate()
        await anyio.sleep(_LEAVE_S)
        # It is killed when the block is left.
        scope.cancel()

    code = 0
    with restored_terminal():
        command = viewer_command(arguments)
        async with (
            await anyio.open_process(command, stdin=None, stdout=None, stderr=None) as viewer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(end, viewer, tasks.cancel_scope)
            code = await viewer.wait()
            tasks.cancel_scope.cancel()
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
        # A terminal that is gone needs nothing.
        with contextlib.suppress(OSError, termios.error):
            sys.stderr.write(_RESET)
            sys.stderr.flush()
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Signals:
    """Ctrl-C is a key of the viewer's; other signals to end are for it to obey."""

    def __init__(self) -> None:
        self._viewer: subprocess.Popen[bytes] | None = None
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on_to(self, viewer: subprocess.Popen[bytes]) -> None:
        """Also what came before."""
        self._viewer = viewer
        for number in self._came:
            viewer.send_signal(number)

    def _pass_on(self, number: int, frame: object) -> None:
        self._came.append(number)
        if self._viewer is not None:
            self._viewer.send_signal(number)
