"""A generation that was cut goes on behind its tokens and comes to what it would have come to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling, TextDelta

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.language.program import JsonValue

SCHEMA: Mapping[str, JsonValue] = {
    "type": "array",
    "items": {"type": "string", "maxLength": 12},
    "maxItems": 3,
}
REQUESTS = {
    "free": GenerateRequest(Sampling(max_tokens=10, temperature=0.9, top_p=0.95, seed=11)),
    "stop": GenerateRequest(Sampling(max_tokens=12, temperature=0.0, stop=(",", "."))),
    "json": GenerateRequest(Sampling(max_tokens=32, temperature=0.7, seed=5), json_schema=SCHEMA),
    "choice": GenerateRequest(Sampling(max_tokens=8, temperature=0.0), choice=("red", "green")),
}


async def asked(backend: Backend) -> Conversation:
    conversation = await backend.open(system="You are brief.")
    conversation.add_user("Name three colours of the rainbow.")
    return conversation


async def written(
    conversation: Conversation, request: GenerateRequest
) -> tuple[str, GenerationDone]:
    text, done = "", None
    async for item in conversation.generate(request):
        if isinstance(item, TextDelta):
            text += item.text
        else:
            done = item
    assert done is not None
    return text, done


@pytest.mark.model
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_cut_generation_goes_on_to_the_same_end(name: str, default_model_dir: Path) -> None:
    request = REQUESTS[name]
    async with open_engine_backend(default_model_dir) as backend:
        _, whole = await written(await asked(backend), request)
        assert whole.output_ids is not None
        num_tokens = len(whole.output_ids)
        for num_before in {num_tokens // 2, num_tokens}:
            cut = replace(request, written=whole.output_ids[:num_before])
            conversation = await asked(backend)
            text, done = await written(conversation, cut)

            assert (whole.text, whole.finish_reason) == (done.text, done.finish_reason)
            assert whole.output_ids == done.output_ids
            assert whole.text == text
            assert whole.usage.generated_tokens == done.usage.generated_tokens
            assert whole.usage.prompt_tokens == done.usage.prompt_tokens
            assert num_before == done.num_restored


@pytest.mark.model
async def test_a_conversation_made_again_from_its_tokens_goes_on_the_same(
    default_model_dir: Path,
) -> None:
    first, second = REQUESTS["free"], REQUESTS["json"]
    async with open_engine_backend(default_model_dir) as backend:
        conversation = await asked(backend)
        _, answer = await written(conversation, first)
        conversation.add_user("Now as JSON.")
        _, expected = await written(conversation, second)

        again = await asked(backend)
        again.add_written(answer, first.prefill)
        again.add_user("Now as JSON.")
        _, done = await written(again, second)

    assert expected.prompt_ids == done.prompt_ids
    assert expected.output_ids == done.output_ids
