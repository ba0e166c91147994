"""Answers of the default model under grammars: whatever ends is a text that lark parses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from flowforge.backends.answer_grammars import value_of_answer
from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling
from flowforge.language.answer_specs import GrammarSpec

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.engine import EngineBackend

pytestmark = [pytest.mark.model, pytest.mark.timeout(300, func_only=True)]

SPECS = (
    GrammarSpec("", "flowforge/iso_datetime", is_shipped=True),
    GrammarSpec('start: W (" " W)~1..3\nW: /(?!(if|or)\\b)[a-z]{1,6}/\n', "words"),
    GrammarSpec('start: %json {"type": "boolean"}', "mask", dialect="llguidance", has_tree=False),
)


@pytest.fixture(params=["asyncio"], name="anyio_backend", scope="module")
def one_loop() -> str:
    return "asyncio"


async def _answer(backend: EngineBackend, spec: GrammarSpec, seed: int) -> GenerationDone:
    conversation = await backend.open()
    conversation.add_user("Write something.")
    sampling = Sampling(max_tokens=40, temperature=1.5, seed=seed)
    try:
        items = conversation.generate(GenerateRequest(sampling=sampling, grammar=spec))
        results = [item async for item in items if isinstance(item, GenerationDone)]
        return results[0]
    finally:
        await conversation.close()


async def test_answers_at_a_high_temperature_parse(default_model_dir: Path) -> None:
    answers: list[tuple[GrammarSpec, GenerationDone]] = []
    async with open_engine_backend(default_model_dir) as backend:

        async def ask(spec: GrammarSpec, seed: int) -> None:
            answers.append((spec, await _answer(backend, spec, seed)))

        async with anyio.create_task_group() as tasks:
            for spec in SPECS:
                for seed in range(4):
                    tasks.start_soon(ask, spec, seed)

    assert {spec.file for spec, done in answers if done.finish_reason == "stop"} == {
        spec.file for spec in SPECS
    }
    for spec, done in answers:
        if done.finish_reason == "stop":
            assert value_of_answer(spec, done.text)
