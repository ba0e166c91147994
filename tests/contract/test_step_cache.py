"""Steps with `cache`: an equal one is not run again, and what is not equal is."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from click.testing import CliRunner
from programs import block, call, for_each, gen, program, tool

from flowforge.backends.protocol import Usage
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.cli.app import app
from flowforge.cli.history_text import run_text
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.step_cache import CachedResult
from flowforge.journal.writer import JournalWriter
from flowforge.language.answer_specs import SamplingSpec
from flowforge.runtime.checking import load_file
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.history import history_of
from flowforge.runtime.run import start
from flowforge.runtime.run_journal import RunJournal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.language.diagnostics import Diagnostic
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.caching import CacheNote

ANY_AGE = {"cache_s": math.inf}


class Lab:
    """Runs on one journal, each with its own number."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.writer = JournalWriter(journal)
        self.num_runs = 0
        self.notes: list[CacheNote] = []
        self.backend = ScriptBackend({})
        self.waited_s = 0.0

    async def run(
        self,
        workflow: Program,
        script: Mapping[str, Any],
        *,
        seed: int | None = None,
        options: Mapping[str, JsonValue] | None = None,
    ) -> Mapping[str, JsonValue]:
        """The outputs; notes and backend are then those of this run."""
        self.num_runs += 1
        begun = RunBegun(
            *("test", "test.yaml", {}, self.num_runs if seed is None else seed),
            *(definitions_of(workflow), options or {}, time.time()),
        )
        journal = RunJournal.begin(self.writer, f"r{self.num_runs}", begun)
        journal.recorder.now = lambda: time.time() + self.waited_s
        self.backend = ScriptBackend(script)
        async with start(workflow, {}, self.backend, journal=journal, seed=begun.seed) as run:
            outputs = await run.result()
        self.notes = [] if journal.cache is None else journal.cache.notes
        assert self.backend.num_open == 0
        return outputs

    @property
    def asked(self) -> list[str]:
        """The steps that the model was asked for in the last run."""
        return [prompt.label for prompt in self.backend.prompts]


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    with Journal(tmp_path / "runs.db") as journal:
        yield Lab(journal)


def sampled(temperature: float = 0.7, **options: Any) -> dict[str, Any]:
    return {"sampling": SamplingSpec(temperature=temperature, **options)}


async def test_a_step_that_was_run_before_gives_its_result_without_a_model(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE))

    first = await lab.run(workflow, {"one": "A"})
    second = await lab.run(workflow, {"one": "never asked"})

    assert (first, second) == ({"one": "A"}, {"one": "A"})
    assert lab.asked == []
    assert [(note.path, note.is_hit) for note in lab.notes] == [("one", True)]


async def test_a_hit_is_told_and_shown_also_after_a_resume(lab: Lab) -> None:
    total = tool("add", "sample_tools:add")
    workflow = program(
        gen("one", keys=ANY_AGE), call("two", "add", keys=ANY_AGE, left="2"), tools=(total,)
    )
    await lab.run(workflow, {"one": "A"})
    await lab.run(workflow, {})

    run = history_of(lab.journal, "r2")
    steps = run.picture.steps
    assert {"one": True, "two": True} == {path: step.is_cached for path, step in steps.items()}
    assert "one: done, 0 tokens" in run_text(run, "done")
    assert 2 == run_text(run, "done").count("from the cache")
    assert not history_of(lab.journal, "r1").picture.steps["one"].is_cached


async def test_a_hit_keeps_the_length_of_its_prompt_and_computed_nothing(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE))
    await lab.run(workflow, {"one": "A"})
    await lab.run(workflow, {})

    made, taken = (lab.journal.works_at(name, "one")[0].result for name in ("r1", "r2"))

    assert isinstance(made, dict)
    assert isinstance(taken, dict)
    length = cast("dict[str, int]", made["usage"])["prompt_tokens"]
    assert length > 0
    usage = Usage(prompt_tokens=length, reused_tokens=length)
    assert taken["usage"] == asdict(usage)


async def test_a_step_without_cache_runs_each_time(lab: Lab) -> None:
    await lab.run(program(gen("one")), {"one": "A"})
    outputs = await lab.run(program(gen("one")), {"one": "B"})

    assert outputs == {"one": "B"}
    assert lab.notes == []


async def test_a_conversation_from_the_cache_can_be_continued(lab: Lab) -> None:
    steps = (
        gen("one", system="Be brief.", user="first", keys=ANY_AGE),
        gen("two", "one", from_step="one", user="second", keys=ANY_AGE),
    )
    await lab.run(program(*steps), {"one": "A", "two": "B"})

    three = gen("three", "two", from_step="two", user="third")
    outputs = await lab.run(program(*steps, three), {"three": "C"})

    assert outputs == {"one": "A", "two": "B", "three": "C"}
    assert lab.asked == ["three"]
    (prompt,) = lab.backend.prompts
    for said in ("Be brief.", "first", "A", "second", "B", "third"):
        assert said in prompt.text


async def test_a_step_behind_another_answer_is_asked_again(lab: Lab) -> None:
    cached = gen("two", "one", from_step="one", user="second", keys=ANY_AGE)
    workflow = program(gen("one"), cached)
    await lab.run(workflow, {"one": "A", "two": "B"})

    outputs = await lab.run(workflow, {"one": "another one", "two": "C"})

    assert outputs == {"one": "another one", "two": "C"}
    assert lab.notes[0].differs == ("conversation",)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"user": "something else"}, "prompt"),
        ({"system": "Be rude."}, "system"),
        ({"sampling": SamplingSpec(max_tokens=9)}, "sampling"),
        ({"choice": ("A", "B")}, "constraint"),
        ({"model": "another"}, "model"),
    ],
)
async def test_a_miss_says_which_part_of_the_key_is_another_one(
    lab: Lab, changed: dict[str, Any], part: str
) -> None:
    await lab.run(program(gen("one", keys=ANY_AGE)), {"one": "A"})

    outputs = await lab.run(program(gen("one", keys=ANY_AGE, **changed)), {"one": "B"})

    assert outputs == {"one": "B"}
    assert [note.differs for note in lab.notes] == [(part,)]
    assert f"miss, {part} was " in str(lab.notes[0])


async def test_what_is_sampled_is_one_result_for_each_place(lab: Lab) -> None:
    body = gen("draft", keys=ANY_AGE, **sampled())
    workflow = program(for_each("all", "[1, 2]", block(body)))

    first = await lab.run(workflow, {"all[0]/draft": "A", "all[1]/draft": "B"})
    second = await lab.run(workflow, {})

    assert first == second == {"all": ["A", "B"]}


async def test_a_seed_that_somebody_gave_counts(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE, **sampled()))
    given: dict[str, JsonValue] = {"is_seeded": True}
    await lab.run(workflow, {"one": "A"}, seed=1, options=given)

    again = await lab.run(workflow, {}, seed=1, options=given)
    other = await lab.run(workflow, {"one": "B"}, seed=2, options=given)

    assert (again, other) == ({"one": "A"}, {"one": "B"})


async def test_a_seed_in_the_file_counts(lab: Lab) -> None:
    await lab.run(program(gen("one", keys=ANY_AGE, **sampled(seed=1))), {"one": "A"})

    same = await lab.run(program(gen("one", keys=ANY_AGE, **sampled(seed=1))), {})
    other = await lab.run(program(gen("one", keys=ANY_AGE, **sampled(seed=2))), {"one": "B"})

    assert (same, other) == ({"one": "A"}, {"one": "B"})


async def test_a_result_that_is_too_old_is_made_anew(lab: Lab) -> None:
    workflow = program(gen("one", keys={"cache_s": 3_600.0}))
    await lab.run(workflow, {"one": "A"})
    lab.waited_s = 1_800.0
    young = await lab.run(workflow, {})

    lab.waited_s = 7_200.0
    old = await lab.run(workflow, {"one": "B"})

    assert (young, old) == ({"one": "A"}, {"one": "B"})
    assert lab.notes[0].differs == ("age",)


async def test_a_run_without_the_cache_takes_and_keeps_nothing(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE))
    off: dict[str, JsonValue] = {"uses_cache": False}
    await lab.run(workflow, {"one": "A"}, options=off)
    outputs = await lab.run(workflow, {"one": "B"})
    again = await lab.run(workflow, {"one": "C"}, options=off)

    assert (outputs, again) == ({"one": "B"}, {"one": "C"})


async def test_an_answer_that_was_cut_off_from_its_form_is_not_kept(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE, regex="A+"))
    with pytest.raises(Exception, match="one"):
        await lab.run(workflow, {"one": ScriptedAnswer("A", finish_reason="length")})

    outputs = await lab.run(workflow, {"one": "AA"})

    assert outputs == {"one": "AA"}


async def test_an_answer_that_only_a_lack_of_room_cut_off_is_not_kept(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE))
    await lab.run(workflow, {"one": ScriptedAnswer("A", finish_reason="length")})

    outputs = await lab.run(workflow, {"one": "AA"})

    assert outputs == {"one": "AA"}


async def test_an_answer_that_max_tokens_cut_off_is_kept(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE, sampling=SamplingSpec(max_tokens=1)))
    await lab.run(workflow, {"one": ScriptedAnswer("A", finish_reason="length")})

    outputs = await lab.run(workflow, {"one": "AA"})

    assert outputs == {"one": "A"}


async def test_equal_steps_of_one_run_compute_once(lab: Lab) -> None:
    workflow = program(for_each("all", "[1, 2, 3]", block(gen("draft", keys=ANY_AGE))))

    outputs = await lab.run(workflow, {"all[*]/draft": "A"})

    assert outputs == {"all": ["A", "A", "A"]}
    assert len(lab.asked) == 1


async def test_equal_steps_of_runs_at_the_same_time_compute_once(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE))
    gate = anyio.Event()
    backends = [ScriptBackend({"one": ScriptedAnswer("A", gate=gate)}) for _ in range(3)]
    outputs: list[Mapping[str, JsonValue]] = []

    async def run_once(idx: int) -> None:
        begun = RunBegun("test", "test.yaml", {}, idx, definitions_of(workflow), {}, time.time())
        journal = RunJournal.begin(lab.writer, f"c{idx}", begun)
        async with start(workflow, {}, backends[idx], journal=journal, seed=idx) as run:
            outputs.append(await run.result())

    async with anyio.create_task_group() as tasks:
        for idx in range(3):
            tasks.start_soon(run_once, idx)
        # All are on their way, or as far as they can come.
        await anyio.wait_all_tasks_blocked()
        gate.set()

    assert outputs == [{"one": "A"}] * 3
    assert sum(len(backend.prompts) for backend in backends) == 1


async def test_a_work_that_fails_lets_the_next_one_try(lab: Lab) -> None:
    workflow = program(gen("one", keys=ANY_AGE))
    with pytest.raises(Exception, match="one"):
        await lab.run(workflow, {"one": ScriptedAnswer(error=ValueError("no"))})

    assert await lab.run(workflow, {"one": "A"}) == {"one": "A"}


async def test_a_turn_that_was_there_and_one_that_was_not_make_one_conversation(
    lab: Lab, tmp_path: Path
) -> None:
    def two_turns(last: str) -> Program:
        text = (
            "steps:\n  one:\n    cache: true\n    turns:\n      - user: first\n      - gen: {}\n"
            "      - user: second\n      - gen: {}\n"
            f"    user: {last}\n    gen:\noutputs: {{ one: '${{ one }}' }}\n"
        )
        found, errors = written_program(text, tmp_path)
        assert found is not None, errors
        return found

    await lab.run(two_turns("third"), {"one": ["A", "B", "C"]})
    outputs = await lab.run(two_turns("last"), {"one": ["D"]})

    assert outputs == {"one": "D"}
    (prompt,) = lab.backend.prompts
    for said in ("first", "A", "second", "B", "last"):
        assert said in prompt.text


async def test_a_tool_is_called_once_for_equal_arguments(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cached_tools", raising=False)
    module = tmp_path / "cached_tools.py"
    module.write_text(
        "from pathlib import Path\n"
        "LOG = Path(__file__).with_suffix('.log')\n"
        "def look(what: str) -> str:\n"
        "    with LOG.open('a') as log:\n"
        "        log.write(what + '\\n')\n"
        "    return what.upper()\n"
    )
    look = tool("look", "cached_tools:look")

    def asking(what: str) -> Program:
        asked = program(call("one", "look", keys=ANY_AGE, what=f"'{what}'"), tools=(look,))
        return replace(asked, file=str(tmp_path / "test.yaml"))

    outputs = [await lab.run(asking(what), {}) for what in ("a", "a", "b")]

    assert outputs == [{"one": "A"}, {"one": "A"}, {"one": "B"}]
    assert lab.notes[0].differs == ("arguments",)
    assert (tmp_path / "cached_tools.log").read_text() == "a\nb\n"


def written_program(text: str, folder: Path) -> tuple[Program | None, list[Diagnostic]]:
    file = folder / "test.yaml"
    file.write_text("flowforge: 1\nname: test\n" + text)
    found = load_file(file)
    errors = [one for one in found.diagnostics if one.severity == "error"]
    return found.program, errors


TOOLS = """
tools:
  look: { python: "m:look", effect: read }
  send: { python: "m:send", effect: write }
steps:
"""


@pytest.mark.parametrize(
    ("cache", "cache_s"), [("true", math.inf), ("1d", 86_400.0), ("false", None)]
)
def test_cache_says_how_old_a_result_may_be(
    cache: str, cache_s: float | None, tmp_path: Path
) -> None:
    one, two = (f"{{ {verb}, cache: {cache} }}" for verb in ("call: look", "user: a, gen: "))
    text = f"{TOOLS}  one: {one}\n  two: {two}\n"
    found, errors = written_program(text, tmp_path)

    assert errors == []
    assert found is not None
    assert [step.cache_s for step in found.steps.values()] == [cache_s, cache_s]


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("{ call: send, cache: true }", "WF140"),
        ("{ user: a, gen: { tools: [look, send] }, cache: 1h }", "WF140"),
        ("{ set: 1, cache: true }", "WF101"),
        ("{ call: look, cache: 5 }", "WF120"),
        ("{ call: look, cache: often }", "WF120"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(step: str, code: str, tmp_path: Path) -> None:
    _, errors = written_program(f"{TOOLS}  one: {step}\n", tmp_path)

    assert [error.code for error in errors] == [code]


def test_turning_the_cache_on_does_not_change_a_step() -> None:
    assert definitions_of(program(gen("one"))) == definitions_of(program(gen("one", keys=ANY_AGE)))


def test_the_command_says_how_many_steps_came_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "flowforge: 1\nname: w\nsteps:\n  one: { user: a, gen: , cache: true }\n"
        "outputs: { one: '${ one }' }\n"
    )
    (tmp_path / "s.json").write_text('{"one": "A"}')
    journal = ["--journal", str(tmp_path / "runs.db")]

    def told(*options: str) -> str:
        file, script = str(tmp_path / "w.yaml"), f"script:{tmp_path / 's.json'}"
        words = ["run", file, "--backend", script, *journal, *options]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return done.stderr

    assert "cache one: miss, there is no result of this step yet" in told("--explain-cache")
    again = told("--explain-cache")
    assert "1 of 1 cached steps from the cache" in again
    assert "cache one: hit" in again
    assert "cache" not in told("--no-cache")
    pruned = CliRunner().invoke(app, ["runs", *journal, "prune", "--older-than", "1ms"])
    assert "1 results of the step cache" in pruned.stderr
    assert "0 of 1 cached steps from the cache" in told()


def result(key: str, at: float, text: str = "") -> CachedResult:
    return CachedResult(key, "one", {"prompt": key}, "call", {"value": text}, (1, 2), at)


def test_the_results_that_were_used_last_are_kept_within_the_size(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs.db") as journal:
        for at, key in enumerate(["a", "b", "c"]):
            journal.keep_result(result(key, float(at)))
        journal.cached("a", 10.0)
        journal.keep_result(result("d", 11.0), max_bytes=100)

        kept = [key for key in "abcd" if journal.cached(key, 12.0) is not None]

    assert kept == ["a", "d"]


def test_results_that_nobody_used_are_forgotten(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs.db") as journal:
        journal.keep_result(result("a", 1.0))
        journal.keep_result(result("b", 5.0))

        assert journal.forget_results(3.0) == 1
        assert journal.cached("a", 6.0) is None
        assert journal.cached("b", 6.0) == result("b", 5.0)


def test_a_batch_says_what_it_had_and_a_run_without_the_cache_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "flowforge: 1\nname: w\ninputs: { word: string }\nsteps:\n"
        "  one: { user: 'Say ${ inputs.word }', gen: , cache: true }\n"
        "outputs: { one: '${ one }' }\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"word": "a"}\n{"word": "b"}\n{"word": "a"}\n')
    (tmp_path / "script.json").write_text('{"one": "said"}')

    def run_map(output: str, *options: str) -> str:
        arguments = ["map", str(tmp_path / "w.yaml"), str(tmp_path / "rows.jsonl")]
        arguments += ["--output", str(tmp_path / output), "--jobs", "1"]
        # A journal of its own would have no cache of the first batch.
        arguments += ["--journal", str(tmp_path / "j.db"), "--seed", str(len(output))]
        arguments += ["--backend", f"script:{tmp_path / 'script.json'}", *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result.stderr

    first = run_map("1.jsonl", "--explain-cache")
    assert "1 of 3 cached steps from the cache" in first
    assert "row 0: cache one: miss" in first
    assert "row 2: cache one: hit" in first
    assert "3 of 3 cached steps from the cache" in run_map("22.jsonl")
    assert "cached steps" not in run_map("333.jsonl", "--no-cache")
