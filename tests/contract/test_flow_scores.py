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


# -- choices by score -----------------------------------------------------------------------------


async def chosen(temperature: float, seed: int, **scores: float) -> str:
    @ff.flow
    async def flow(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Which?")
            kind = await chat.choose([*scores], scoring="exact", temperature=temperature)
            return f"{kind} {await chat.gen(name='why')}"

    backend = script({"choose": scores, "why": "so"})
    said = await ff.run(flow, backend=backend, seed=seed)
    assert f"user: Which?\nassistant: {said.split()[0]}" == backend.prompts[-1].text
    return said


async def test_an_exact_choice_takes_the_likeliest_and_is_the_next_turn() -> None:
    assert "b so" == await chosen(0, 1, a=-3, b=-1, c=-2)


async def test_an_exact_choice_is_drawn_in_proportion_to_the_scores() -> None:
    drawn = [await chosen(1.0, seed, a=-0.2231, b=-1.6094) for seed in range(200)]

    # 0.8 to 0.2; four standard deviations are 23.
    assert 137 <= drawn.count("a so") <= 183
    assert drawn[:5] == [await chosen(1.0, seed, a=-0.2231, b=-1.6094) for seed in range(5)]


async def test_an_option_that_an_exact_choice_cannot_heed_is_refused() -> None:
    @ff.flow
    async def flow(run: ff.Run) -> str:
        async with run.chat() as chat:
            return await chat.choose(["a", "b"], scoring="exact", top_k=2)

    with pytest.raises(ff.RunFailedError, match="'top_k' means nothing"):
        await ff.run(flow, backend=script({"choose": "a"}))
