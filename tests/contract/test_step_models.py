"""Steps that name their model: which one they run on, when it is loaded, and what it cost."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

import flowforge as ff
from flowforge.backends import engines
from flowforge.backends.protocol import BackendStatistics
from flowforge.backends.script import ScriptBackend
from flowforge.errors import EngineError, WorkflowError
from flowforge.runtime.events import ModelAccounting, RunFinished
from flowforge.testing import script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

TWO_MODELS = """
flowforge: 1
name: two
steps:
  plan: { user: Plan., gen: {} }
  judge: { model: org/judge, user: "Judge ${ plan }", gen: {} }
  again: { from: judge, user: Again., gen: {} }
outputs: { end: "${ again }" }
"""


@pytest.fixture
def two_models(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TWO_MODELS, encoding="utf-8")
    return path


async def test_a_step_runs_on_its_model_and_so_does_what_continues_it(two_models: Path) -> None:
    backend = script({"plan": "p", "judge": "j", "again": "a"})

    async with ff.start(two_models, backend=backend) as handle:
        facts = [event.fact async for event in handle.events()]

    models = {prompt.label: prompt.model for prompt in backend.prompts}
    assert {"plan": None, "judge": "org/judge", "again": "org/judge"} == models
    assert isinstance(facts[-1], RunFinished)
    total = facts[-1].accounting
    own, judge = total.models
    assert (None, "org/judge") == (own.model, judge.model)
    assert (1, 2) == (own.generated_tokens, judge.generated_tokens)
    for name in ModelAccounting.__dataclass_fields__.keys() - {"model"}:
        assert getattr(total, name) == getattr(own, name) + getattr(judge, name)


async def test_a_chat_of_a_flow_may_be_on_another_model() -> None:
    @ff.flow
    async def two(run: ff.Run) -> str:
        async with run.chat() as chat, run.chat(model="org/judge") as judge:
            draft = await chat.gen(name="draft")
            judge.user("{draft}", draft=draft)
            async with judge.fork(1) as (branch,):
                return await branch.gen(name="verdict")

    backend = script({"draft": "d", "fork[0]/verdict": "good"})

    assert "good" == await ff.run(two, backend=backend)
    assert [None, "org/judge"] == [prompt.model for prompt in backend.prompts]


class Opening:
    """Stands for `open_engine_backend`: backends that answer from a script."""

    def __init__(self, broken: str | None = None) -> None:
        self.opened: list[str] = []
        self.num_open = 0
        self._broken = broken

    @asynccontextmanager
    async def __call__(self, directory: Path, **settings: object) -> AsyncGenerator[ScriptBackend]:
        del settings
        self.opened.append(directory.name)
        await anyio.lowlevel.checkpoint()
        if directory.name == self._broken:
            raise EngineError("EN110", f"no config.json in {directory.name!r}")
        self.num_open += 1
        try:
            yield ScriptBackend({"*": directory.name})
        finally:
            self.num_open -= 1


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("own", "judge"):
        (tmp_path / name).mkdir()
    return tmp_path


async def test_a_model_is_loaded_once_when_it_is_first_asked_for_and_all_close_together(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Opening()
    monkeypatch.setattr(engines, "open_engine_backend", opening)
    monkeypatch.chdir(folders)

    async with engines.open_engines(folders / "own") as backend:
        assert ["own"] == opening.opened
        async with anyio.create_task_group() as tasks:
            for name in ("judge", "./judge", str(folders / "judge"), str(folders / "own")):
                tasks.start_soon(partial(backend.open, model=name))
        assert ["own", "judge"] == opening.opened
        assert 2 == opening.num_open
        assert isinstance(backend.statistics(), BackendStatistics)
        assert 4 == backend.statistics().pages_held

    assert 0 == opening.num_open


async def test_a_model_that_cannot_be_loaded_fails_its_step_and_no_other(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Opening(broken="judge")
    monkeypatch.setattr(engines, "open_engine_backend", opening)
    path = folders / "two.yaml"
    path.write_text(TWO_MODELS.replace("org/judge", "./judge"), encoding="utf-8")

    async with engines.open_engines(folders / "own") as backend:
        with pytest.raises(ff.RunFailedError, match="'judge' failed: no config") as caught:
            await ff.run(path, backend=backend)

        assert ["judge"] == [failure.path for failure in caught.value.failures]
        assert caught.value.location is not None
        assert 6 == caught.value.location.line
    assert 0 == opening.num_open


async def test_a_cancel_while_a_model_is_loaded_lets_the_next_step_load_it(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Opening()
    monkeypatch.setattr(engines, "open_engine_backend", opening)

    async with engines.open_engines(folders / "own") as backend:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await backend.open(model=str(folders / "judge"))
        conversation = await backend.open(model=str(folders / "judge"))
        await conversation.close()
        assert 2 == opening.num_open

    assert 0 == opening.num_open


@pytest.mark.model
@pytest.mark.timeout(120, func_only=True)
async def test_two_engines_run_beside_each_other(default_model_dir: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    twin.symlink_to(default_model_dir, target_is_directory=True)
    path = tmp_path / "two.yaml"
    path.write_text(
        TWO_MODELS.replace("org/judge", "./twin").replace("gen: {}", "gen: { max_tokens: 3 }"),
        encoding="utf-8",
    )

    async with engines.open_engines(default_model_dir) as backend:
        async with ff.start(path, backend=backend) as handle:
            facts = [event.fact async for event in handle.events()]
        with pytest.raises(WorkflowError, match="WF512"):
            await backend.own.open(model="org/judge")
        assert 0 == backend.statistics().pages_held

    assert isinstance(facts[-1], RunFinished)
    for model in facts[-1].accounting.models:
        assert model.prefilled_tokens == model.unique_prompt_tokens
