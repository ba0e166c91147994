"""`flowforge map` over a thousand rows, killed with SIGKILL and begun again: every row once.

    python benchmarks/killed_map.py [--rows 1000] [--kills 2]

Two generations a row on scripted answers, eight rows at a time. Each kill comes once another share
of the rows has its line; what was killed is begun again by the same command. Prints how many
generations were begun more than once. Ends with an AssertionError unless the lines are those of all
rows, each once, in order, and done.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAP = "from flowforge.cli import main; main()"
WORKFLOW = """\
flowforge: 1
name: rows
inputs: { topic: string }
steps:
  note: { user: "Say something of ${ inputs.topic }.", gen: { max_tokens: 9 } }
  short: { from: note, user: Make it shorter., gen: { max_tokens: 9 } }
outputs: { note: "${ note }", short: "${ short }" }
"""


def main() -> None:
    """Map, kill, map again; check and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=2)
    arguments = parser.parse_args()
    num_rows: int = arguments.rows
    num_kills: int = arguments.kills
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, num_rows)
        killed_at: list[int] = []
        for number in range(1, num_kills + 1):
            process = begin(folder)
            wait_for_lines(process, folder, number * num_rows // (num_kills + 1))
            process.kill()
            process.wait()
            killed_at.append(num_lines(folder))
        process = begin(folder)
        _, told = process.communicate()
        assert process.returncode == 0, told
        check_lines(folder, num_rows)
        num_generations, num_again = count_generations(folder)
    assert num_generations == 2 * num_rows
    places = ", ".join(map(str, killed_at))
    print(f"{num_rows:,} rows, killed behind {places}: every row once, in order, done")
    print(f"of {num_generations:,} generations {num_again} were begun more than once")


def write_files(folder: Path, num_rows: int) -> None:
    """Workflow, rows and answers."""
    (folder / "rows.yaml").write_text(WORKFLOW, encoding="utf-8")
    rows = "".join(json.dumps({"topic": f"topic {idx}"}) + "\n" for idx in range(num_rows))
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    (folder / "answers.json").write_text('{"*": "some words of it"}', encoding="utf-8")


def begin(folder: Path) -> subprocess.Popen[str]:
    """The one command that begins the rows and goes on with them."""
    options = ("-o", "out.jsonl", "--journal", "runs.db", "--backend", "script:answers.json", "-q")
    return subprocess.Popen(
        [sys.executable, "-c", MAP, "map", "rows.yaml", "rows.jsonl", *options],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_lines(process: subprocess.Popen[str], folder: Path, num: int) -> None:
    """Wait until so many rows have a line."""
    while num_lines(folder) < num:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def num_lines(folder: Path) -> int:
    """Lines of the output that are whole."""
    out = folder / "out.jsonl"
    return out.read_bytes().count(b"\n") if out.exists() else 0


def check_lines(folder: Path, num_rows: int) -> None:
    """Every row is there once, in order, and done."""
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    told = [(line["row"], line["status"]) for line in map(json.loads, lines)]
    assert told == [(idx, "done") for idx in range(num_rows)]


def count_generations(folder: Path) -> tuple[int, int]:
    """All generations of the journal, and those that were begun more than once."""
    journal = sqlite3.connect(folder / "runs.db")
    try:
        query = "SELECT COUNT(*), SUM(num_starts > 1) FROM works WHERE kind = 'generation'"
        num, num_again = journal.execute(query).fetchone()
    finally:
        journal.close()
    return int(num), int(num_again)


if __name__ == "__main__":
    main()
