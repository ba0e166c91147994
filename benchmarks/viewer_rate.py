"""The viewer in a real terminal while a run tells thousands of events a second.

    python benchmarks/viewer_rate.py [--rate 5000] [--seconds 60] [--size 160x48]
    python benchmarks/viewer_rate.py --messages 10000

The first writes texts of eight branches into a file of events at the given rate and opens it with
`flowforge tui --events` on a pseudo-terminal. Twice a second it presses `5`, which gives the panel
of events the focus: the time until its title is drawn anew is the key lag. It prints whether the
last words were shown, the lag's quantiles and the share of a core that was used. The second opens
a recording of many steps and prints the time until its last one is in sight, and that of a start
without any.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUM_BRANCHES = 8
_FOCUSED = b"Events"
_LAST_WORDS = "the very last words"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--size", default="160x48")
    parser.add_argument("--messages", type=int)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        if options.messages is None:
            _measure_rate(file, options.rate, options.seconds, (width, height))
        else:
            _measure_opening(file, options.messages, (width, height))


class Terminal:
    """A viewer on a pseudo-terminal."""

    def __init__(self, file: Path, size: tuple[int, int]) -> None:
        width, height = size
        self.began_s = time.monotonic()
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "flowforge.tui", "--events", str(file)])
        size_bytes = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size_bytes)

    def press(self, key: str) -> None:
        """Send a key."""
        os.write(self._descriptor, key.encode())

    def read(self, timeout_s: float) -> bytes:
        """What the viewer drew within a time; as soon as there is something."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return b""
        try:
            return os.read(self._descriptor, 1 << 20)
        except OSError:
            return b""

    def read_until(self, wanted: bytes, timeout_s: float) -> float | None:
        """Seconds since the start at which it drew something; None if it did not."""
        until, drawn = time.monotonic() + timeout_s, b""
        while time.monotonic() < until:
            drawn += self.read(0.5)
            if wanted in drawn:
                return time.monotonic() - self.began_s
            drawn = drawn[-200_000:]
        return None

    def cpu_s(self) -> float:
        """Seconds of a core that the viewer has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Leave the viewer."""
        self.press("q")
        while self.read(2.0):
            pass
        os.waitpid(self.pid, 0)


def _measure_rate(file: Path, rate: int, seconds: float, size: tuple[int, int]) -> None:
    file.write_text("".join(_beginning()))
    terminal = Terminal(file, size)
    assert terminal.read_until(b"Events", 60) is not None
    teller = multiprocessing.Process(target=_tell, args=(str(file), rate, seconds))
    teller.start()
    began_s, began_cpu_s = time.monotonic(), terminal.cpu_s()
    lags: list[float] = []
    while time.monotonic() - began_s < seconds:
        pressed_s = time.monotonic()
        terminal.press("5")
        drawn = b""
        while _FOCUSED not in drawn and time.monotonic() - pressed_s < 10:
            drawn = drawn[-16:] + terminal.read(0.5)
        lags.append(time.monotonic() - pressed_s)
        terminal.press("1")
        while time.monotonic() - pressed_s < 0.5:
            terminal.read(0.05)
    taken_s = time.monotonic() - began_s
    cpu_share = (terminal.cpu_s() - began_cpu_s) / taken_s
    teller.join()
    is_shown = terminal.read_until(b"very last words", 30) is not None
    terminal.close()
    lags.sort()
    print(
        f"{rate:,} events/s for {taken_s:.0f} s at {size[0]}x{size[1]}: "
        f"last words shown {is_shown}, "
        f"key lag p50 {_quantile(lags, 0.5):.0f} ms, p99 {_quantile(lags, 0.99):.0f} ms "
        f"({len(lags)} keys), {cpu_share:.0%} of a core"
    )


def _measure_opening(file: Path, num_messages: int, size: tuple[int, int]) -> None:
    file.write_text("".join(_beginning()))
    empty = Terminal(file, size)
    empty_s = empty.read_until(b"Events", 60)
    empty.close()
    lines = _beginning()[:1]
    for idx in range(num_messages):
        seq = len(lines)
        start = {"event": "step_started", "path": f"talk[{idx}]/say", "verb": "gen"}
        value = _LAST_WORDS if idx == num_messages - 1 else f"message {idx}, some words long"
        end = {"event": "step_finished", "path": f"talk[{idx}]/say", "value": value}
        lines += (_line(seq + k, idx / 10, told) for k, told in enumerate((start, end)))
    file.write_text("".join(lines))
    terminal = Terminal(file, size)
    shown_s = terminal.read_until(b"very last words", 120)
    terminal.close()
    print(
        f"{num_messages:,} messages at {size[0]}x{size[1]}: "
        f"last one in sight after {shown_s:.2f} s, "
        f"a start without any takes {empty_s:.2f} s"
        if shown_s is not None and empty_s is not None
        else "the last message was not shown"
    )


def _beginning() -> list[str]:
    started: list[dict[str, object]] = [
        {"event": "step_started", "path": f"branch[{idx}]/draft", "verb": "gen"}
        for idx in range(_NUM_BRANCHES)
    ]
    begun: dict[str, object] = {"event": "run_started", "workflow": "rate", "inputs": {}}
    told = [begun, *started]
    return [_line(seq, 0.0, one) for seq, one in enumerate(told)]


def _tell(file: str, rate: int, seconds: float) -> None:
    """Write texts at a rate, a hundred times a second."""
    seq = _NUM_BRANCHES + 1
    with open(file, "a", encoding="utf-8") as opened:
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < seconds:
            lines: list[str] = []
            while seq - _NUM_BRANCHES - 1 < now_s * rate:
                path = f"branch[{seq % _NUM_BRANCHES}]/draft"
                told = {"event": "step_text", "path": path, "text": f"word{seq} ", "num_tokens": 1}
                lines.append(_line(seq, now_s, told))
                seq += 1
            opened.write("".join(lines))
            opened.flush()
            time.sleep(0.01)
        path = f"branch[{_NUM_BRANCHES - 1}]/draft"
        for idx in range(_NUM_BRANCHES):
            path = f"branch[{idx}]/draft"
            told = {"event": "step_text", "path": path, "text": f"\n{_LAST_WORDS}", "num_tokens": 3}
            opened.write(_line(seq + idx, seconds, told))


def _line(seq: int, time_s: float, told: Mapping[str, object]) -> str:
    return json.dumps({"seq": seq, "time_s": round(time_s, 3), **told}) + "\n"


def _quantile(ordered: list[float], share: float) -> float:
    """In milliseconds."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


if __name__ == "__main__":
    main()
