"""How long a command takes before it does anything: start-up over bare Python.

    python benchmarks/startup.py [--runs 15]

Aims: `flowforge --help` within 150 ms over bare Python, `flowforge check` within 300 ms in all.
The median of the runs is printed, in milliseconds; file caches are warm, and modules have been
compiled to bytecode, as they are where FlowForge was installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOWFORGE = (sys.executable, "-c", "from flowforge.cli import main; main()")
COMMANDS: dict[str, tuple[str, ...]] = {
    "bare python": (sys.executable, "-c", "pass"),
    "import flowforge": (sys.executable, "-c", "import flowforge"),
    "flowforge --help": (*FLOWFORGE, "--help"),
    "flowforge check": (*FLOWFORGE, "check", str(ROOT / "workflows" / "analyst.yaml")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=15, help="timed runs of each command")
    num_runs: int = parser.parse_args().runs

    bare_ms = 0.0
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode_in(folder)
        for name, command in COMMANDS.items():
            median_ms = measure(command, num_runs, environment)
            bare_ms = bare_ms or median_ms
            print(f"{name:18} {median_ms:7.1f} ms  {median_ms - bare_ms:+7.1f} ms over bare python")


def with_bytecode_in(folder: str) -> dict[str, str]:
    """This environment, with bytecode in a folder of its own.

    Bytecode may lack beside the sources of an editable installation, or be switched off; then
    compiling them would be most of what is measured.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def measure(command: tuple[str, ...], num_runs: int, environment: dict[str, str]) -> float:
    """Median wall time in milliseconds, after one run that warms caches and writes bytecode.

    Raises CalledProcessError when the command fails.
    """
    start_and_wait(command, environment)
    return statistics.median(start_and_wait(command, environment) for _ in range(num_runs))


def start_and_wait(command: tuple[str, ...], environment: dict[str, str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return (time.perf_counter() - started_s) * 1_000


if __name__ == "__main__":
    main()
