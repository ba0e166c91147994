"""Kill runs with SIGKILL at every commit, and at random; go on with them; compare with whole ones.

    python benchmarks/kill_matrix.py [NUM_RANDOM] [SEED] [NAME…]

Four workflows and a flow in Python with loops, branches, samples, retries, a catch, a finally,
questions, tools with effects, and models that call tools, on scripted answers
(tests/support/durable_workflows.py); NAME picks some. For each: one run that is
left alone; then for every commit k, a run that is killed before commit k is on the disk and one
that is killed right after, each gone on with to its end; then NUM_RANDOM runs that are killed after
a random time, again and again until one process comes to the end. Results, journals and what tools
did must be those of the run that was left alone.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from durable_runs import facts_of, works_of
from durable_workflows import FLOWS, WORKFLOWS
from killed_processes import KILLED, Stand

from flowforge.journal.journal import Journal


def main() -> None:
    """Run the matrix and print what was done."""
    num_random = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    begun_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="flowforge-kills-"))
    try:
        names = sys.argv[3:] or [*WORKFLOWS, *FLOWS]
        wholes = {name: whole_run(folder / name, name) for name in names}
        num_points = sum(matrix(folder, whole) for whole in wholes.values())
        num_kills = random_kills(folder, list(wholes.values()), num_random, random.Random(seed))
    finally:
        shutil.rmtree(folder)
    took_s = time.monotonic() - begun_s
    print(f"{num_points} kills at commits, {num_kills} random kills (seed {seed}), {took_s:.0f} s")


def whole_run(folder: Path, name: str) -> Stand:
    """A run that nobody kills."""
    stand = Stand(folder, name)
    stand.prepare()
    process = stand.begin()
    _, told = process.communicate()
    assert process.returncode == 0, told
    return stand


def matrix(folder: Path, whole: Stand) -> int:
    """Kill at every commit; how many there were."""
    num_points = 0
    for place in ("before-commit", "after-commit"):
        number = 1
        while cut_once(folder / "cut", whole, f"{place}:{number}"):
            num_points += 1
            number += 1
        print(f"{whole.workflow}: {place} 1 to {number - 1}", flush=True)
    return num_points


def cut_once(folder: Path, whole: Stand, failpoint: str) -> bool:
    """One cut and its resume; False when the run is over before the failpoint."""
    stand = Stand(folder, whole.workflow)
    stand.prepare()
    try:
        process = stand.begin(failpoint)
        _, told = process.communicate()
        if process.returncode == 0:
            return False
        assert process.returncode == KILLED, told
        if not is_done(stand):
            finish(stand)
        require_same(whole, stand, failpoint)
        return True
    finally:
        shutil.rmtree(folder)


def random_kills(folder: Path, wholes: list[Stand], num: int, chance: random.Random) -> int:
    """Kill after random times until `num` processes were; how many."""
    num_kills = 0
    while num_kills < num:
        whole = chance.choice(wholes)
        stand = Stand(folder / "random", whole.workflow)
        stand.prepare()
        process = stand.begin()
        while killed_in_time(process, chance.uniform(0.5, 4.0)):
            num_kills += 1
            process = stand.resume() if has_run(stand) else stand.begin()
        require_same(whole, stand, f"random kill {num_kills}")
        shutil.rmtree(stand.folder)
        print(f"{num_kills} random kills", flush=True)
    return num_kills


def killed_in_time(process: subprocess.Popen[str], after_s: float) -> bool:
    """Kill a process after a while; False when it was faster."""
    try:
        _, told = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    # A run whose process was killed behind its last commit is done.
    assert process.returncode == 0 or "WF701" in told, told
    return False


def finish(stand: Stand) -> None:
    """Go on to the end."""
    process = stand.resume()
    _, told = process.communicate()
    assert process.returncode == 0, told


def require_same(whole: Stand, stand: Stand, where: str) -> None:
    """The result, the works, the events and the tools of a run are those of the whole one."""
    one, other = run_of(whole), run_of(stand)
    place = f"{whole.workflow}, {where}"
    assert outcome(whole) == outcome(stand), place
    assert works_of(whole.journal, one) == works_of(stand.journal, other), place
    # The inputs of the two runs name their own ledgers.
    told, told_too = facts_of(whole.journal, one), facts_of(stand.journal, other)
    assert [fact[:2] for fact in told] == [fact[:2] for fact in told_too], place
    assert set(whole.lines()) == set(stand.lines()), place


def outcome(stand: Stand) -> object:
    """What a run came to."""
    with Journal(stand.journal) as journal:
        row = journal.run(run_of(stand))
        assert row.status == "done", row.status
        return row.outcome


def is_done(stand: Stand) -> bool:
    """Whether a run came to its end."""
    with Journal(stand.journal) as journal:
        return bool(journal.runs()) and journal.runs()[0].status == "done"


def has_run(stand: Stand) -> bool:
    """Whether a run was begun."""
    if not stand.journal.exists():
        return False
    with Journal(stand.journal) as journal:
        return bool(journal.runs())


def run_of(stand: Stand) -> str:
    """The name of a stand's run."""
    with Journal(stand.journal) as journal:
        return journal.runs()[0].run_id


if __name__ == "__main__":
    main()
