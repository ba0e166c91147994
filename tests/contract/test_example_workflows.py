"""The examples of workflows/, run through the command line on scripted answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from click.testing import CliRunner, Result

import flowforge as ff
from flowforge.cli.app import app
from flowforge.testing import VirtualClock, in_turn, script

if TYPE_CHECKING:
    from flowforge.runtime.commands import StartQuestion

WORKFLOWS = Path(__file__).parents[2] / "workflows"
FILES = sorted(WORKFLOWS.glob("*.yaml"))
RABBIT_HOLE = WORKFLOWS / "texts" / "rabbit_hole.txt"


@dataclass(frozen=True)
class Example:
    """answers: of the model, by step path. outputs: what the run must come to."""

    answers: dict[str, object]
    outputs: dict[str, object]
    options: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    never_started: tuple[str, ...] = ()


EXAMPLES = {
    "analyst": Example(
        {
            "angles": '["Expenses", "Distance", "Lawfulness"]',
            "explore[*]/draft": "a",
            "report": "r",
        },
        {"report": "r"},
        started=("explore[2]/draft",),
    ),
    "approval": Example(
        {"notice": "We open at eight."},
        {"decision": "approve", "posted": "We open at eight."},
        ("--answers", str(WORKFLOWS / "answers" / "approval.json")),
    ),
    "best_of_n": Example(
        {
            "titles[*]": ["Rivers in turns", "Bends of water", "Curves of land", "Old rivers bend"],
            "best[*]/judge": "3",
            "best[1]/judge": "5",
        },
        {"title": "Bends of water", "score": 5},
    ),
    "branch_and_switch": Example(
        {"kind": "bug", "reply/bug/apology": "Sorry, which version?"},
        {"kind": "bug", "queue": "support, bug desk", "reply": "Sorry, which version?"},
        started=("queue/else/support",),
        never_started=("queue/then/nobody", "reply/question/answer"),
    ),
    "critique_loop": Example(
        {
            "draft": "Light that never ends.",
            "polish[0]/critique": '{"problem":"It says little","verdict":"poor"}',
            "polish[0]/rewrite": "The bicycle light that charges itself.",
            "polish[1]/critique": '{"problem":"There is none","verdict":"good"}',
        },
        {"slogan": "The bicycle light that charges itself.", "rounds": 2},
        never_started=("polish[1]/rewrite", "polish[2]"),
    ),
    "form_extractor": Example(
        {
            "order": '{"contact":{"name":"Ada Moss","email":"ada@moss.example"},"items":'
            '[{"product":"lamp","quantity":2},{"product":"tea","quantity":6}],"urgent":false}',
        },
        {
            "order": {
                "contact": {"name": "Ada Moss", "email": "ada@moss.example"},
                "items": [{"product": "lamp", "quantity": 2}, {"product": "tea", "quantity": 6}],
                "urgent": False,
            },
            "products": ["lamp", "tea"],
        },
    ),
    "map_reduce_summary": Example(
        {"notes[*]/note": [f"note {idx}" for idx in range(7)], "summary": "Alice falls."},
        {"notes": [f"note {idx}" for idx in range(7)], "summary": "Alice falls."},
        ("-i", f"text=@{RABBIT_HOLE}"),
    ),
    "race": Example(
        {
            "science": "physics",
            "answer/quick": "Blue light scatters.",
            "answer/careful/thoughts": "one two three four five six seven eight nine ten",
            "answer/careful/conclusion": "Because.",
        },
        {"science": "physics", "answer": "Blue light scatters."},
        never_started=("answer/careful/conclusion",),
    ),
    "retell": Example({"retold": "Bees point the way."}, {"text": "Bees point the way."}),
    "rolling_chat": Example(
        {"chat[*]/answer": ["A whale.", "Krill.", "Ninety years.", "It is huge."]},
        {"answers": ["A whale.", "Krill.", "Ninety years.", "It is huge."]},
        never_started=("chat[4]/answer",),
    ),
    "self_consistency_vote": Example(
        {
            "thoughts[*]": ["It has 3.", "Squares have 4.", "Three.", "Tri is three.", "Sides."],
            "answer[*]/solve": "The answer is 3.",
            "answer[1]/solve": "The answer is 4.",
        },
        {"answer": "The answer is 3."},
    ),
    "sql_analyst": Example(
        {"sql": "SELECT product FROM orders WHERE price > 20", "answer": "Lamps and the like."},
        {
            "sql": "SELECT product FROM orders WHERE price > 20",
            "rows": {"columns": ["product"], "rows": [["lamp"], ["chair"], ["desk"]]},
            "answer": "Lamps and the like.",
        },
    ),
    "subflow": Example(
        {"versions[0]/version/retold": "Bees dance!", "versions[1]/version/retold": "Bees signal."},
        {"versions": "For a small child: Bees dance!\nFor a scientist: Bees signal."},
    ),
    "tree_of_thought": Example(
        {
            "firsts[0]": "Set a date",
            "firsts[1]": "Buy some food",
            "search[*]/grown[0]/nexts[*]": [
                "Invite the guests",
                "Ask some friends",
                "Cook a meal",
                "Rest a bit",
            ],
            "search[*]/grown[1]/nexts[*]": [
                "Clean it up",
                "Buy more drinks",
                "Lay the tables",
                "Play a game",
            ],
            "search[*]/grown[*]/children[*]/grade": "2",
            "search[0]/grown[0]/children[1]/grade": "8",
            "search[1]/grown[1]/children[0]/grade": "9",
        },
        {"plan": "1. Set a date\n2. Ask some friends\n3. Lay the tables"},
    ),
    "trip_agent": Example(
        {
            "agent": [
                {"calls": [{"name": "weather", "arguments": {"city": "Lima"}}]},
                "It is cloudy, at 19 degrees.",
            ]
        },
        {"answer": "It is cloudy, at 19 degrees."},
        started=("agent/weather[0]",),
    ),
}


def flowforge(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def events_of(name: str, example: Example, folder: Path) -> list[dict[str, Any]]:
    """The run's events, from `--json`."""
    script = folder / "script.json"
    script.write_text(json.dumps(example.answers), encoding="utf-8")
    backend = ("--backend", f"script:{script}", "--json")
    result = flowforge("run", WORKFLOWS / f"{name}.yaml", *example.options, *backend)
    assert 0 == result.exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_workflow_has_an_example_run() -> None:
    assert sorted(EXAMPLES) == [file.stem for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_checks_without_errors_or_warnings(file: Path) -> None:
    result = flowforge("check", "--strict", file)

    assert (0, "1 file checked: no problems\n") == (result.exit_code, result.stdout)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_workflow_comes_to_its_outputs(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]

    events = events_of(name, example, tmp_path)

    started = {event["path"] for event in events if event["event"] == "step_started"}
    assert "run_finished" == events[-1]["event"]
    assert example.outputs == events[-1]["outputs"]
    assert set(example.started) <= started
    assert set() == started & set(example.never_started)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_workflow_prefills_each_prompt_token_once(name: str, tmp_path: Path) -> None:
    accounting = events_of(name, EXAMPLES[name], tmp_path)[-1]["accounting"]

    assert accounting["unique_prompt_tokens"] == accounting["prefilled_tokens"]


def test_the_loser_of_the_race_is_cancelled(tmp_path: Path) -> None:
    events = events_of("race", EXAMPLES["race"], tmp_path)

    cancelled = [event["path"] for event in events if event["event"] == "step_cancelled"]
    assert "answer/careful/thoughts" in cancelled


def test_the_rolling_chat_forgets_all_but_two_exchanges() -> None:
    backend = script({"chat[*]/answer": in_turn("A whale.", "Krill.", "Ninety.", "Huge.")})
    questions = ["one?", "two?", "three?", "four?"]

    ff.run_sync(WORKFLOWS / "rolling_chat.yaml", backend=backend, questions=questions)

    last = backend.prompts[-1].text.splitlines()[1:]
    assert last == [
        "user: two?",
        "assistant: Krill.",
        "user: three?",
        "assistant: Ninety.",
        "user: four?",
    ]


async def test_an_unanswered_approval_is_a_rejection_after_two_hours() -> None:
    async def away(question: StartQuestion) -> str:
        await anyio.sleep_forever()
        raise AssertionError(question)

    clock = VirtualClock()
    backend = script({"notice": "We open at eight."})
    approval = WORKFLOWS / "approval.yaml"
    async with ff.start(approval, backend=backend, asker=away, clock=clock) as run:
        outputs = await run.result()

    assert {"decision": "reject", "posted": "nothing"} == outputs
    assert 7200 == clock.now()
