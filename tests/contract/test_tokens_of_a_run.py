"""What a run asks its backend about tokens: how texts are counted, and what there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.backends.passing import PassingBackend
from flowforge.backends.script import ScriptBackend
from flowforge.errors import WorkflowError
from flowforge.language.loader import load, load_text, require_program
from flowforge.language.room import require_room
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.program import JsonValue

WORKFLOW = """\
flowforge: 1
name: counted
inputs: { story: string }
steps:
  head:
    set: ${ inputs.story | truncate_tokens(2) }
  pieces:
    for: piece in inputs.story | split_tokens(2)
    do:
      echo:
        user: ${ piece | truncate_tokens(1) }
        gen:
  shrunk:
    loop: { rest: "${ inputs.story }" }
    max: 9
    until: ${ rest | tokens <= 2 }
    do:
      half: { set: "${ rest | truncate_tokens((rest | tokens) - 1) }" }
    next: { rest: "${ half }" }
outputs:
  head: ${ head }
  pieces: ${ pieces }
  shrunk: ${ shrunk.rest }
  count: ${ inputs.story | tokens }
"""


async def test_every_scope_of_a_run_counts_tokens_as_its_backend_does() -> None:
    program = require_program(load_text(WORKFLOW))
    inputs: dict[str, JsonValue] = {"story": "one two three four five"}
    backend = ScriptBackend({"pieces[*]/echo": "ok"})

    async with start(program, inputs, backend) as run:
        outputs = await run.result()

    assert outputs == {
        "head": "one two ",
        "pieces": ["ok", "ok", "ok"],
        "shrunk": "one two ",
        "count": 5,
    }
    asked = sorted(prompt.text for prompt in backend.prompts)
    assert asked == ["user: five", "user: one ", "user: three "]


class SmallBackend(PassingBackend):
    """A backend whose model has room for 100 tokens."""

    @property
    def capacity(self) -> int:
        return 100


async def test_a_step_that_asks_for_too_many_tokens_is_refused_before_any_runs() -> None:
    program = require_program(
        load_text(
            "flowforge: 1\nname: t\nsteps:\n  a: { user: hi, gen: }\n"
            "  b:\n    for: one in [1]\n    do:\n"
            "      c: { user: '${ a }', gen: { max_tokens: 100 } }\n"
        )
    )
    script = ScriptBackend({"*": "ok"})

    with pytest.raises(WorkflowError) as caught:
        async with start(program, {}, SmallBackend(script)):
            pass

    assert caught.value.code == "WF516"
    assert caught.value.location is not None
    assert caught.value.location.line == 8
    assert "step 'c' asks for up to 100 tokens" in caught.value.message
    assert not script.prompts


def test_room_is_looked_for_in_turns_and_in_the_workflows_that_are_run(tmp_path: Path) -> None:
    head = "flowforge: 1\nname: t\nsteps:\n"
    (tmp_path / "inner.yaml").write_text(
        f"{head}  a: {{ turns: [user: Hi., {{ gen: {{ max_tokens: 50 }} }}], user: So?, gen: }}\n"
        "outputs: { a: '${ a }' }\n"
    )
    outer = tmp_path / "outer.yaml"
    outer.write_text(f"{head}  b: {{ run: inner.yaml }}\noutputs: {{ b: '${{ b }}' }}\n")
    program = require_program(load(outer))

    require_room(program, 51)
    with pytest.raises(WorkflowError, match="step 'a' asks for up to 50 tokens"):
        require_room(program, 50)


def test_steps_on_other_models_are_left_to_those() -> None:
    text = "a: { user: hi, gen: { max_tokens: 100 }, model: large }\n"
    program = require_program(load_text(f"flowforge: 1\nname: t\nsteps:\n  {text}"))

    require_room(program, 10)
