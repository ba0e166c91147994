"""What a viewer costs the run that it watches: tokens a second with one open, and without.

    python benchmarks/viewer_cost.py [--pairs 5] [--branches 6] [--tokens 96] [--size 160x48]

Runs a workflow of parallel branches with `flowforge run` on the default model, in turn without a
viewer and with `flowforge.tui` attached to it on a pseudo-terminal, each in a process of its own. A
run waits for an answer until its viewer shows it, so that loading and starting are not measured:
what counts is the time from the answer to the last branch's end. The tokens are the same in every
run. Prints every rate, the medians, their ratio, and what run and viewer used of a core: the ratio
of rates is as noisy as the machine, what the run itself has to do for its viewer is not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from terminals import Terminal, cpu_seconds

from flowforge.control.orders import send_order

WORKFLOW = """\
flowforge: 1
name: cost
inputs:
  items: {{ type: array, items: {{ type: integer }}, default: {items} }}
steps:
  gate: {{ ask: "Begin?", choices: [begin] }}
  topic:
    user: "Answer ${{ gate }}: name a topic."
    gen: {{ max_tokens: 8 }}
  branches:
    for: item in inputs.items
    do:
      draft:
        from: topic
        user: "Write a long story, number ${{ item }}, about it."
        gen: {{ max_tokens: {tokens}, temperature: 0.8 }}
outputs: {{ drafts: "${{ branches }}" }}
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. run_cpu_s: seconds of a core that it used itself while the branches wrote.

    viewer_share: of a core, at that time; 0 without a viewer.
    """

    num_tokens: int
    seconds: float
    run_cpu_s: float
    viewer_share: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--branches", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--size", default="160x48")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    without: list[Measured] = []
    with_one: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        workflow = Path(folder) / "cost.yaml"
        items = [*range(1, options.branches + 1)]
        workflow.write_text(WORKFLOW.format(items=items, tokens=options.tokens))
        for idx in range(options.pairs):
            # Which comes first changes, so that a machine that gets slower favours neither.
            for has_viewer in (bool(idx % 2), not idx % 2):
                size = (columns, rows) if has_viewer else None
                one = _measure(workflow, Path(folder) / "runs.db", size)
                (with_one if has_viewer else without).append(one)
                print(
                    f"{'with   ' if has_viewer else 'without'} {one.num_tokens} tokens in "
                    f"{one.seconds:.2f} s, {one.rate:.1f} tok/s, run {one.run_cpu_s:.2f} s of a "
                    f"core, viewer {one.viewer_share:.0%}",
                    flush=True,
                )
    rates = [median(one.rate for one in runs) for runs in (without, with_one)]
    costs = [median(one.run_cpu_s for one in runs) for runs in (without, with_one)]
    share = median(one.viewer_share for one in with_one)
    print(
        f"medians: {rates[0]:.1f} tok/s without, {rates[1]:.1f} with, ratio "
        f"{rates[1] / rates[0]:.3f}; the run used {costs[0]:.2f} and {costs[1]:.2f} s of a core, "
        f"ratio {costs[1] / costs[0]:.3f}; the viewer used {share:.0%} of a core"
    )


def _measure(workflow: Path, journal: Path, size: tuple[int, int] | None) -> Measured:
    command = ["-m", "flowforge", "run", str(workflow), "--json", "--seed", "7"]
    with subprocess.Popen(
        [sys.executable, *command, "--journal", str(journal), "--wait-for-answers"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        run_id = str(_record_of(run.stdout, "run_started")["run_id"])
        _record_of(run.stdout, "step_asked")
        viewer = None if size is None else _Viewer(run_id, journal, size)
        asked_cpu_s = 0.0 if viewer is None else viewer.cpu_s()
        run_cpu_s = cpu_seconds(run.pid)
        began_s = time.monotonic()
        send_order(journal, run_id, order="answer", path="gate", text="begin")
        last = _record_of(run.stdout, "run_finished")
        seconds = time.monotonic() - began_s
        run_cpu_s = cpu_seconds(run.pid) - run_cpu_s
        used_s = 0.0 if viewer is None else viewer.cpu_s() - asked_cpu_s
        if viewer is not None:
            viewer.close()
        run.communicate()
    return Measured(last["accounting"]["generated_tokens"], seconds, run_cpu_s, used_s / seconds)


def _record_of(lines: IO[str], event: str) -> dict[str, Any]:
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        if record["event"] == event:
            return record
    raise AssertionError(f"the run ended before {event!r}")


class _Viewer:
    """A viewer that shows a run, and somebody who reads what it draws."""

    def __init__(self, run_id: str, journal: Path, size: tuple[int, int]) -> None:
        arguments = ["-m", "flowforge.tui", run_id, "--journal", str(journal)]
        self._terminal = Terminal(arguments, size)
        self._terminal.read_until(b"to answer", 60)
        self._is_left = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def cpu_s(self) -> float:
        return self._terminal.cpu_s()

    def close(self) -> None:
        self._is_left = True
        self._reader.join()
        self._terminal.press("q")
        self._terminal.end()
        self._terminal.close()

    def _read(self) -> None:
        while not self._is_left:
            self._terminal.read(0.2)


if __name__ == "__main__":
    main()
