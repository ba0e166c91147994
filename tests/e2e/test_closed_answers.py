"""Answers closed before they are cut, and forks of constrained ones, on the default model."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling
from flowforge.engine.config import EngineConfig
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.grammars import compile_json_schema, validate_json
from flowforge.language.answer_specs import AnswerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.engine import EngineBackend

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "names"],
}


async def answer(backend: EngineBackend, seed: int, options: AnswerOptions) -> GenerationDone:
    conversation = await backend.open()
    conversation.add_user("Tell me of the sea.")
    sampling = Sampling(max_tokens=16, temperature=1.5, seed=seed)
    request = GenerateRequest(sampling, json_schema=FORM, options=options)
    async with aclosing(conversation.generate(request)) as items:
        async for item in items:
            if isinstance(item, GenerationDone):
                await conversation.close()
                return item
    raise AssertionError("a generation ends")


async def test_hot_answers_with_little_room_are_whole_or_told_as_cut(
    default_model_dir: Path,
) -> None:
    config = EngineConfig(num_threads=1)
    async with open_engine_backend(default_model_dir, config=config) as backend:
        for seed in range(3):
            closed = await answer(backend, seed, AnswerOptions(on_cut="close"))
            cut = await answer(backend, seed, AnswerOptions())

            assert closed.finish_reason in ("closed", "stop")
            validate_json(closed.text, FORM)
            assert cut.finish_reason in ("length", "stop")


async def test_a_fork_in_the_middle_of_a_constrained_answer_ends_in_its_own_way(
    default_model_dir: Path,
) -> None:
    schema: Any = {
        "type": "array",
        "items": {"enum": ["north", "south", "east"]},
        "minItems": 6,
        "maxItems": 6,
    }
    config = EngineConfig(num_threads=1)
    async with open_engine_backend(default_model_dir, config=config) as backend:
        compiled = compile_json_schema(schema, backend.constraints.vocabulary())
        sequence = backend.engine.open()
        sequence.append(backend.tokenizer.encode("Directions:"))
        prompt_len = len(sequence.tokens)
        params = SamplingParams(temperature=1.5, max_tokens=60, seed=1)
        stream = sequence.generate(GenerationRequest(params, compiled.start()))
        fork = None
        async with aclosing(stream):
            async for update in stream:
                if fork is None and isinstance(update, TokensArrived):
                    fork = await sequence.fork()
        assert fork is not None
        after = fork.tokens[prompt_len:]
        other = SamplingParams(temperature=1.5, max_tokens=60, seed=2)
        rest = fork.generate(GenerationRequest(other, compiled.start(after)))
        async with aclosing(rest):
            async for _ in rest:
                pass

        texts = [backend.tokenizer.decode(one.tokens[prompt_len:]) for one in (sequence, fork)]
        assert texts[0] != texts[1]
        for text in texts:
            validate_json(text, schema)
