"""The viewer in a real terminal while a run tells thousands of events a second.

    python benchmarks/viewer_rate.py [--rate 5000] [--seconds 60] [--size 160x48]
    python benchmarks/viewer_rate.py --messages 10000

The first writes texts of eight branches into a file of events at the given rate and opens it with
`flowforge tui --events` on a pseudo-terminal. Twice a second it presses `5`, which gives the panel
of events the focus: the time until its title is drawn anew is the key lag. It prints whether the
last words were shown, the lag's quantiles, the share of a core that was used, and what a busy loop
got of one, which tells how quiet the machine was. The second opens a recording of many steps and
prints the time until its last one is in sight, and that of a start without any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from terminals import Terminal

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


def _open(file: Path, size: tuple[int, int]) -> Terminal:
    return Terminal(["-m", "flowforge.tui", "--events", str(file)], size)


def _measure_rate(file: Path, rate: int, seconds: float, size: tuple[int, int]) -> None:
    file.write_text("".join(_beginning()))
    share_before = _busy_share()
    terminal = _open(file, size)
    terminal.read_until(b"Events", 60)
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
    until_s = time.monotonic() + 30
    while _LAST_WORDS.encode() not in terminal.drawn and time.monotonic() < until_s:
        terminal.read(0.5)
    is_shown = _LAST_WORDS.encode() in terminal.drawn
    _leave(terminal)
    lags.sort()
    print(
        f"{rate:,} events/s for {taken_s:.0f} s at {size[0]}x{size[1]}: "
        f"last words shown {is_shown}, "
        f"key lag p50 {_quantile(lags, 0.5):.0f} ms, p99 {_quantile(lags, 0.99):.0f} ms "
        f"({len(lags)} keys), {cpu_share:.0%} of a core; "
        f"a busy loop got {share_before:.0%} of a core before and {_busy_share():.0%} after"
    )


def _measure_opening(file: Path, num_messages: int, size: tuple[int, int]) -> None:
    file.write_text("".join(_beginning()))
    empty = _open(file, size)
    empty_s = empty.read_until(b"Events", 60)
    _leave(empty)
    lines = _beginning()[:1]
    for idx in range(num_messages):
        seq = len(lines)
        start = {"event": "step_started", "path": f"talk[{idx}]/say", "verb": "gen"}
        value = _LAST_WORDS if idx == num_messages - 1 else f"message {idx}, some words long"
        end = {"event": "step_finished", "path": f"talk[{idx}]/say", "value": value}
        lines += (_line(seq + k, idx / 10, told) for k, told in enumerate((start, end)))
    file.write_text("".join(lines))
    terminal = _open(file, size)
    shown_s = terminal.read_until(_LAST_WORDS.encode(), 120)
    _leave(terminal)
    print(
        f"{num_messages:,} messages at {size[0]}x{size[1]}: "
        f"last one in sight {shown_s:.2f} s after the command's start, "
        f"{shown_s - empty_s:.2f} s behind the screen of an empty run ({empty_s:.2f} s)"
    )


def _leave(terminal: Terminal) -> None:
    terminal.press("q")
    terminal.end()
    terminal.close()


def _busy_share(seconds: float = 1.0) -> float:
    """What share of a core a process gets that only computes: below 1 others work, too."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while time.monotonic() - began_s < seconds:
        pass
    return (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)


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
