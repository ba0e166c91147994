"""The commands of the journal as a user meets them, on scripted answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from flowforge.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKFLOW = """\
flowforge: 1
name: report
inputs: { topic: string }
steps:
  angles:
    system: You are careful.
    user: "Topic: ${ inputs.topic }. Name angles."
    gen: { json: { type: array, items: { type: string } } }
  draft:
    for: angle in angles
    do:
      one:
        from: angles
        user: "Explore ${ angle }."
        gen: {}
  report:
    from: angles
    user: "Merge: ${ draft | join(', ') }"
    gen: {}
outputs: { report: "${ report }" }
"""
ANSWERS = {"angles": '["cost","law"]', "draft[*]/one": "it matters", "report": "All of it."}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of its own, a workflow and a script."""
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "runs.db"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.yaml").write_text(WORKFLOW, encoding="utf-8")
    script(ANSWERS)
    return tmp_path


def script(answers: Mapping[str, object]) -> None:
    Path("script.json").write_text(json.dumps(answers), encoding="utf-8")


def flowforge(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", [["runs"], ["ps"], ["show", "x"], ["pause", "x"], ["resume"]])
def test_reading_makes_no_journal_of_a_name_that_was_mistyped(
    command: list[str], tmp_path: Path
) -> None:
    told = flowforge(*command, "--journal", "run.db")

    assert "EN704" in told.stderr
    assert "run.db' is not there" in told.stderr
    assert 0 != told.exit_code
    assert not (tmp_path / "run.db").exists()


def run(*arguments: str) -> str:
    """Run the workflow; the name of the run."""
    result = flowforge(
        "run", "report.yaml", "-i", "topic=bicycles", "--backend", "script:script.json", *arguments
    )
    named = re.search(r"^run (\S+)$", result.stderr, re.MULTILINE)
    assert named is not None, result.stderr
    return named[1]


def names() -> list[str]:
    return [line.split()[0] for line in flowforge("runs").stdout.splitlines()]


def test_runs_lists_the_newest_first_with_its_state() -> None:
    first = run()
    script({"angles": "no json"})
    second = run()
    lines = flowforge("runs").stdout.splitlines()

    assert [(second, "failed"), (first, "done")] == [tuple(line.split()[:2]) for line in lines]
    told = [json.loads(line) for line in flowforge("runs", "--json").stdout.splitlines()]
    assert [(second, "failed"), (first, "done")] == [(r["run_id"], r["status"]) for r in told]


def test_a_run_without_a_journal_leaves_nothing() -> None:
    arguments = ("-i", "topic=x", "--backend", "script:script.json", "--no-journal")
    assert 0 == flowforge("run", "report.yaml", *arguments).exit_code

    assert not Path("runs.db").exists()
    assert [] == names()


def test_show_tells_a_run_step_by_step() -> None:
    name = run()
    shown = flowforge("show", name).stdout

    assert f"run {name}  done\n" in shown
    assert "input topic: bicycles\n" in shown
    steps = re.findall(r"^(\S+): done", shown, re.MULTILINE)
    assert ["angles", "draft", "draft[0]/one", "draft[1]/one", "report"] == steps
    assert "output report:\nAll of it.\n" in shown


def test_show_of_a_step_marks_the_values_in_its_prompt() -> None:
    name = run()
    shown = flowforge("show", name, "angles").stdout

    assert "system: You are careful.\n" in shown
    assert "user: Topic: ⟦bicycles⟧. Name angles.\n" in shown
    assert 'assistant: ["cost","law"]\n' in shown
    branch = flowforge("show", name, "draft[1]/one").stdout
    assert "continues angles\nuser: Explore ⟦law⟧.\nassistant: it matters\n" in branch


def test_show_and_export_tell_the_results_of_the_calls_of_a_step(folder: Path) -> None:
    (folder / "towns.py").write_text(
        "def country(town: str) -> str:\n    return 'Peru'\n", encoding="utf-8"
    )
    (folder / "report.yaml").write_text(
        "flowforge: 1\nname: report\ninputs: { topic: string }\n"
        'tools: { country: { python: "towns:country", effect: read } }\n'
        "steps:\n  a: { user: 'Where is ${ inputs.topic }?', gen: { tools: [country] } }\n"
        "outputs: { a: '${ a }' }\n",
        encoding="utf-8",
    )
    call = {"calls": [{"name": "country", "arguments": {"town": "Lima"}}]}
    script({"a": [call, "In Peru."]})
    name = run()

    shown = flowforge("show", name, "a").stdout
    assert "user: Where is ⟦bicycles⟧?\n" in shown
    assert 'tool results: ⟦["Peru"]⟧\nassistant: In Peru.\n' in shown
    assert '> tool results: ⟦["Peru"]⟧\n' in flowforge("export", name, "-f", "markdown").stdout


def test_an_unknown_step_or_run_is_a_usage_error() -> None:
    name = run()
    result = flowforge("show", name, "angels")
    assert (2, True) == (result.exit_code, "did you mean 'angles'?" in result.stderr)
    result = flowforge("show", "nosuch")
    assert (2, True) == (result.exit_code, "error[WF701]" in result.stderr)


def test_export_holds_all_of_a_run_as_json_and_markdown() -> None:
    name = run()
    told = json.loads(flowforge("export", name).stdout)

    assert (name, "done", {"report": "All of it."}) == (
        told["run_id"],
        told["status"],
        told["outputs"],
    )
    (angles,) = [step for step in told["steps"] if step["path"] == "angles"]
    assert ["cost", "law"] == angles["value"]
    assert "You are careful." == angles["works"][0]["request"]["system"]
    document = flowforge("export", name, "-f", "markdown").stdout
    assert f"# report, run {name}\n" in document
    assert "> user: Topic: ⟦bicycles⟧. Name angles.\n" in document


def test_diff_says_where_two_runs_part() -> None:
    first = run("--seed", "1")
    script({**ANSWERS, "draft[1]/one": "it does not"})
    second = run("--seed", "1")
    result = flowforge("diff", first, second)

    assert 1 == result.exit_code
    assert "draft[1]/one: value\n- it matters\n+ it does not\n" in result.stdout
    assert "report: prompt\n" in result.stdout
    assert (0, "") == (flowforge("diff", first, first).exit_code, "")


def test_runs_of_two_seeds_part_by_their_seed_and_not_by_prompts_that_are_the_same() -> None:
    first, second = run("--seed", "1"), run("--seed", "2")

    assert "the runs: seed\n- 1\n+ 2\n" == flowforge("diff", first, second).stdout


def test_diff_shows_of_a_prompt_what_differs() -> None:
    first = run("--seed", "1")
    script({**ANSWERS, "angles": '["cost","joy"]'})
    second = run("--seed", "1")

    difference = flowforge("diff", first, second).stdout.partition("draft[1]/one: prompt\n")[2]

    (one, other) = difference.splitlines()[:2]
    assert "Explore law." in one
    assert "Explore joy." in other
    assert "sampling" not in one


FLOW = """
import flowforge as ff

@ff.flow
async def chatty(run: ff.Run) -> str:
    async with run.chat(system="Be brief.") as chat:
        chat.user("Name angles of {topic}.", topic="bicycles")
        first = await chat.gen(name="first")
        chat.user("And now?")
        return await chat.gen(name="second")
"""


def test_show_has_the_prompts_of_a_flow(folder: Path) -> None:
    (folder / "chatty.py").write_text(FLOW, encoding="utf-8")
    script({"*": "Cost."})
    flowforge("run", "chatty.py", "--backend", "script:script.json")
    name = flowforge("runs").stdout.split()[0]

    first, second = (flowforge("show", name, step).stdout for step in ("first", "second"))

    assert "system: Be brief.\nuser: Name angles of ⟦bicycles⟧.\nassistant: Cost.\n" in first
    assert "user: And now?\nassistant: Cost.\n" in second
    assert "system" not in second
    assert (
        "> user: Name angles of ⟦bicycles⟧." in flowforge("export", name, "-f", "markdown").stdout
    )


def test_a_flow_is_not_run_again_from_a_step(folder: Path) -> None:
    text = "import flowforge as ff\n@ff.flow\nasync def quick(run: ff.Run) -> int:\n    return 1\n"
    (folder / "quick.py").write_text(text, encoding="utf-8")
    flowforge("run", "quick.py", "--backend", "script:script.json")
    name = flowforge("runs").stdout.split()[0]

    result = flowforge("rerun", name, "--from", "quick")

    assert 2 == result.exit_code
    assert "error[WF705]: 'quick' is a flow in Python" in result.stderr


def test_rerun_takes_over_what_comes_before_a_step() -> None:
    name = run("--seed", "1")
    # What is taken over is not asked again: the script has nothing else.
    script({"report": "All of it, again."})
    result = flowforge("rerun", name, "--from", "report")

    assert (0, "All of it, again.\n") == (result.exit_code, result.stdout), result.stderr
    assert 2 == len(names())
    (new,) = set(names()) - {name}
    difference = flowforge("diff", name, new).stdout
    assert difference.startswith("report: value\n")


def test_rerun_takes_a_changed_step_and_refuses_changed_ones_before_it(folder: Path) -> None:
    name = run()
    script({"report": "Merged."})
    changed = WORKFLOW.replace('"Merge: ', '"Please merge: ')
    (folder / "report.yaml").write_text(changed, encoding="utf-8")
    assert "Merged.\n" == flowforge("rerun", name, "--from", "report").stdout

    changed = WORKFLOW.replace("You are careful.", "You are quick.")
    (folder / "report.yaml").write_text(changed, encoding="utf-8")
    result = flowforge("rerun", name, "--from", "report")
    assert (2, True) == (result.exit_code, "error[WF702]" in result.stderr)
    assert 2 == len(names())
    result = flowforge("rerun", name, "--from", "raport")
    assert "did you mean 'report'?" in result.stderr


def test_a_failed_run_goes_on_with_the_step_that_failed() -> None:
    script({path: answer for path, answer in ANSWERS.items() if path != "report"})
    name = run()
    script({"report": "All of it."})
    result = flowforge("resume", "-q")

    assert (0, "All of it.\n") == (result.exit_code, result.stdout), result.stderr
    assert [name] == names()
    again = flowforge("resume", name)
    assert (2, True) == (again.exit_code, "error[WF704]" in again.stderr)


def test_prune_forgets_the_older_runs_and_frees_their_space() -> None:
    first, second, third = run(), run(), run()
    assert f"{first}\n" == flowforge("runs", "prune", "--keep", "2", "--dry-run").stdout
    assert 3 == len(names())
    flowforge("runs", "prune", "--keep", "1")

    assert [third] == names()
    assert second not in names()
    assert "" == flowforge("runs", "prune", "--older-than", "1h").stdout
    assert 2 == flowforge("runs", "prune").exit_code
