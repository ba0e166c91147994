"""Commands on a pseudo-terminal, as a person at a real one has them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEFT = (b"\x1b[?1049l", b"\x1b[?1000l", b"\x1b[?25h")
"""The other screen is left, the mouse is off, the cursor is there."""

_MAX_KEPT = 400_000


def cpu_seconds(pid: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Terminal:
    """One command, begun at once. drawn: what it has written, as much of its end as is kept."""

    def __init__(self, arguments: Sequence[str], size: tuple[int, int] = (120, 36)) -> None:
        """arguments: of the Python that this runs in. size: columns and rows."""
        self.began_s = time.monotonic()
        self.drawn = b""
        self.num_drawn = 0
        self.is_closed = False
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS="", LINES="")
            os.execv(sys.executable, [sys.executable, *arguments])
        self.resize(size)

    def resize(self, size: tuple[int, int]) -> None:
        """Change the size; the command is told."""
        columns, rows = size
        packed = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, packed)

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._descriptor, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        os.kill(self.pid, number)

    def read(self, timeout_s: float, max_bytes: int = 1 << 20) -> bytes:
        """What comes within a time, as soon as there is something; nothing once it has ended."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return b""
        try:
            chunk = os.read(self._descriptor, max_bytes)
        except OSError:
            chunk = b""
        self.is_closed = not chunk
        self.num_drawn += len(chunk)
        self.drawn = (self.drawn + chunk)[-_MAX_KEPT:]
        return chunk

    def read_until(self, wanted: bytes, timeout_s: float = 30.0) -> float:
        """Read on until something is drawn; seconds since the command began."""
        until, seen = time.monotonic() + timeout_s, b""
        while wanted not in seen:
            assert time.monotonic() < until, f"{wanted!r} was not drawn: {self.drawn[-2000:]!r}"
            seen = seen[-len(wanted) :] + self.read(0.5)
            assert not self.is_closed, f"it ended before {wanted!r}: {self.drawn[-2000:]!r}"
        return time.monotonic() - self.began_s

    def end(self, timeout_s: float = 30.0) -> tuple[bytes, int]:
        """Wait for the command's end; what it drew until then, and its exit code."""
        until, drawn = time.monotonic() + timeout_s, b""
        while not self.is_closed:
            assert time.monotonic() < until, f"it has not ended: {self.drawn[-2000:]!r}"
            drawn += self.read(0.5)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return drawn, os.waitstatus_to_exitcode(status)

    def cpu_s(self) -> float:
        """See `cpu_seconds`."""
        return cpu_seconds(self.pid)

    def close(self) -> None:
        """End it in any case; idempotent."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
