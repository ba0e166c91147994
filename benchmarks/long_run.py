"""A run of many steps with a journal: memory, size of the file, and the time to go on with it.

    python benchmarks/long_run.py [NUM_STEPS] [OUTPUT_CHARS] [values|lengths]

A `for` over NUM_STEPS items, eight at a time, whose scripted answers are OUTPUT_CHARS characters of
words; its result is the list of these texts, or of their lengths, and then nothing can read a text
any more. Prints resident memory over the run, the journal's size, and, for a copy of the run that
is cut before its last step, the seconds until the first new step asks its model.
"""

from __future__ import annotations

import random
import resource
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from programs import block, for_each, gen, program, set_

from flowforge.backends.protocol import Usage
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.events import StepFinished, StepStarted
from flowforge.runtime.run import start
from flowforge.runtime.run_journal import RunJournal

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue, Program

WORDS = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8").split()


class WordyBackend(ScriptBackend):
    """Answers every step by other words, drawn from real text. asked_s: when it was last asked."""

    def __init__(self, num_chars: int) -> None:
        super().__init__({})
        self.asked_s = 0.0
        self._num_chars = num_chars
        self._desk.answer = self._answer  # type: ignore[method-assign]  # the backend makes its desk
        # Nobody asks this backend what it was asked, nor what a perfect cache would have saved.
        self._desk.prompts = deque(maxlen=0)  # type: ignore[assignment]  # keeps none
        self._desk.account = self._account  # type: ignore[method-assign]  # as above

    def _account(
        self, prompt_ids: tuple[int, ...], output_ids: tuple[int, ...], num_restored: int = 0
    ) -> Usage:
        return Usage(len(prompt_ids), generated_tokens=len(output_ids) - num_restored)

    def _answer(self, label: str, num_results: int) -> ScriptedAnswer:
        assert num_results == 0, "no step calls tools"
        self.asked_s = time.monotonic()
        return ScriptedAnswer(words(label, self._num_chars))


def words(label: str, num_chars: int) -> str:
    """A text of its own for every label."""
    chance, text = random.Random(label), ""
    while len(text) < num_chars:
        text += chance.choice(WORDS) + " "
    return text


async def main(num_steps: int, num_chars: int, result: str, folder: Path) -> None:
    """Run, cut, go on."""
    items: list[JsonValue] = [f"item {idx}" for idx in range(num_steps)]
    one = gen("one", user="Say ${ item }.")
    kept = "one" if result == "values" else "one | len"
    each = for_each("each", items, block(one, result=kept), limit=8)
    workflow = program(each, set_("size", "each | len", "each"), gen("after", "each"))
    path = folder / "runs.db"
    begun_s = time.monotonic()
    with Journal(path) as journal:
        begun = RunBegun("long", "long", {}, 1, definitions_of(workflow), {}, time.time())
        entered = RunJournal.begin(JournalWriter(journal), "r", begun)
        backend = WordyBackend(num_chars)
        async with start(workflow, {}, backend, seed=1, journal=entered) as run:
            num_ended = 0
            async for event in run.events():
                if isinstance(event.fact, StepStarted) and event.fact.path == "after":
                    break_copy(journal, folder / "cut.db")
                if isinstance(event.fact, StepFinished):
                    num_ended += 1
                    if num_ended % max(1, num_steps // 5) == 0:
                        print(f"{num_ended:,} steps: {resident_mb():.0f} MB", flush=True)
            await run.result()
    print(f"{num_steps:,} steps in {time.monotonic() - begun_s:.1f} s")
    print(f"journal {path.stat().st_size / 1e6:.1f} MB")
    await go_on(workflow, folder / "cut.db")


def break_copy(journal: Journal, path: Path) -> None:
    """The journal as a process that is killed now would leave it."""
    import sqlite3

    with sqlite3.connect(journal.path) as source, sqlite3.connect(path) as target:
        source.backup(target)
    source.close()
    target.close()


async def go_on(workflow: Program, path: Path) -> None:
    """Time from the opening of the journal to the first new work."""
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    with Journal(path) as journal:
        entered = RunJournal.resume(JournalWriter(journal), "r", definitions_of(workflow))
        backend = WordyBackend(100)
        async with start(workflow, {}, backend, seed=1, journal=entered) as run:
            await run.result()
            used_s = time.process_time() - begun_cpu_s
            print(f"first new step after {backend.asked_s - begun_s:.2f} s")
            print(f"to its end {used_s:.2f} s of the processor, {resident_mb():.0f} MB")


def resident_mb() -> float:
    """Resident memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="flowforge-long-"))
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    chars = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000
    results = sys.argv[3] if len(sys.argv) > 3 else "values"
    try:
        anyio.run(main, steps, chars, results, place)
    finally:
        shutil.rmtree(place)
