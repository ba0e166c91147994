"""`chat.score`: texts weighed without being written, in the events and in the books."""

from __future__ import annotations

import pytest

import flowforge as ff
from flowforge.runtime.events import RunFinished, StepFinished, StepStarted
from flowforge.testing import script


@ff.flow
async def judged(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Friendly?")
        scores = await chat.score(["yes", "no", "not at all"], name="judge")
        best = max(scores, key=lambda score: score.mean_logprob)
        return await chat.gen(name=best.text)


async def test_scores_come_in_the_order_of_the_texts_and_the_chat_stays_as_it_was() -> None:
    backend = script({"judge": {"no": -2, "yes": -0.5, "not at all": -3}, "yes": "fine"})

    async with ff.start(judged, backend=backend) as handle:
        facts = [event.fact async for event in handle.events()]

    assert isinstance(facts[-1], RunFinished)
    assert {"result": "fine"} == facts[-1].outputs
    assert ["user: Friendly?"] * 2 == [prompt.text for prompt in backend.prompts]
    started = [(f.path, f.verb) for f in facts if isinstance(f, StepStarted)]
    assert [("judge", "score"), ("yes", "gen")] == started
    (judge, _) = [fact for fact in facts if isinstance(fact, StepFinished)]
    assert [
        {"text": "yes", "logprob": -0.5, "num_tokens": 2},
        {"text": "no", "logprob": -2.0, "num_tokens": 2},
        {"text": "not at all", "logprob": -3.0, "num_tokens": 4},
    ] == judge.value
    assert judge.usage is not None
    assert 0 == judge.usage.generated_tokens
    accounting = facts[-1].accounting
    assert accounting.prefilled_tokens == accounting.unique_prompt_tokens


async def test_a_scoring_that_fails_names_its_step() -> None:
    broken = ff.ScriptedAnswer(error=ff.EngineError("EN900", "out of order"))

    with pytest.raises(ff.RunFailedError, match="'judge' failed: out of order"):
        await ff.run(judged, backend=script({"judge": broken}))


@pytest.mark.parametrize("texts", [[], [""], ["a", "a"]])
async def test_texts_that_cannot_be_compared_are_refused(texts: list[str]) -> None:
    @ff.flow
    async def weigh(run: ff.Run) -> list[ff.Score]:
        async with run.chat() as chat:
            return await chat.score(texts)

    with pytest.raises(ff.RunFailedError, match="WF607"):
        await ff.run(weigh, backend=script({"score": "a"}))
