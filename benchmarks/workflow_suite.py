"""The times of all workloads of `flowforge bench workflows`, one workload after the other.

Run `python benchmarks/workflow_suite.py DIR [SECONDS [REPEATS]]` with nothing beside it: some 30
minutes in all on two cores with five repeats, most of them for `serial`. It writes the results of
each workload as JSON into DIR, leaves out those that are there and were measured on a quiet
machine, and begins no other after SECONDS. So it can be run in pieces; when all are there it prints
all of them, the ratios, and draws DIR/ratios.svg.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from flowforge.bench.workloads import WORKLOADS

FLOWFORGE = [sys.executable, "-m", "flowforge", "bench"]
# Small random weights and lengths divided: see docs/bench-workflows.md.
SETTING = ["--shape", "small", "--scale", "8", "--waits", "0.0125", "--even-if-busy", "--json"]


def is_measured(path: Path) -> bool:
    """Whether a file holds results of a quiet machine."""
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["is_quiet"] is True


def measure(name: str, repeats: int, path: Path) -> None:
    """Run one workload in a process of its own."""
    words = [*FLOWFORGE, "workflows", *SETTING, "--workload", name, "--repeats", str(repeats)]
    printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    path.write_text(printed, encoding="utf-8")


def main() -> None:
    """Measure what is missing, then show what is there."""
    directory = Path(sys.argv[1])
    most_s = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    directory.mkdir(parents=True, exist_ok=True)
    files = {name: directory / f"{name}.json" for name in WORKLOADS}
    started_at = time.monotonic()
    for name, path in files.items():
        if is_measured(path):
            continue
        if time.monotonic() - started_at > most_s:
            break
        measure(name, repeats, path)
        quiet = "" if is_measured(path) else ", but the machine was busy"
        print(f"{name}: {time.monotonic() - started_at:.0f} s{quiet}", flush=True)
    missing = [name for name, path in files.items() if not is_measured(path)]
    if missing:
        print(f"still to be measured: {', '.join(missing)}")
        return
    words = [*FLOWFORGE, "figures", *map(str, files.values())]
    subprocess.run([*words, "--plot", str(directory / "ratios.svg")], check=True)


if __name__ == "__main__":
    main()
