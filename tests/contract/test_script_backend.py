"""The scripted backend keeps the protocol's promises: cuts are told once, texts are scored."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from flowforge.backends.protocol import GenerateRequest, Score, ScoreRequest
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError, WorkflowError


async def test_a_generation_that_is_closed_early_tells_its_cost_once() -> None:
    conversation = await ScriptBackend({"a": "one two three"}).open()
    conversation.add_user("count")
    async with aclosing(conversation.generate(GenerateRequest(label="a"))) as items:
        async for _ in items:
            break

    cut = conversation.take_cut()

    assert cut is not None
    assert 1 == cut.usage.generated_tokens
    assert cut.usage.prompt_tokens == cut.usage.prefilled_tokens > 0
    assert conversation.take_cut() is None


async def test_a_generation_that_fails_is_spent_and_one_that_ends_is_no_cut() -> None:
    error = EngineError("EN900", "broken")
    backend = ScriptBackend({"a": ScriptedAnswer("one two", error=error), "b": "three"})
    conversation = await backend.open()
    with pytest.raises(EngineError):
        [item async for item in conversation.generate(GenerateRequest(label="a"))]

    cut = conversation.take_cut()
    assert cut is not None
    assert 2 == cut.usage.generated_tokens

    [item async for item in conversation.generate(GenerateRequest(label="b"))]
    assert conversation.take_cut() is None
    assert 3 == backend.statistics().generated_tokens


@pytest.mark.parametrize(
    ("answer", "logprobs"),
    [("no", [-100.0, 0.0]), ('{"yes": -0.5, "no": -1, "maybe": -2}', [-0.5, -1.0])],
)
async def test_texts_are_scored_as_the_script_says(answer: str, logprobs: list[float]) -> None:
    conversation = await ScriptBackend({"judge": answer}).open()
    conversation.add_user("is it?")

    done = await conversation.score(ScoreRequest(("yes", "no"), label="judge"))

    assert done.scores == tuple(
        Score(text, logprob, 2) for text, logprob in zip(("yes", "no"), logprobs, strict=True)
    )
    assert done.usage.prompt_tokens == done.usage.prefilled_tokens > 0
    assert 0 == done.usage.generated_tokens


async def test_a_script_that_does_not_score_a_text_says_which() -> None:
    conversation = await ScriptBackend({"judge": '{"yes": true}'}).open()

    with pytest.raises(WorkflowError, match="says nothing of the text 'yes'"):
        await conversation.score(ScoreRequest(("yes", "no"), label="judge"))
