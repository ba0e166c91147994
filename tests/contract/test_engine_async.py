"""The engine's async face over the stand-in model: streams, cancellation, ends, life cycle."""

from __future__ import annotations

import gc
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest
from history_model import EOS, VOCAB_SIZE, history_core, right_output

from flowforge.engine.continuations import score_continuations
from flowforge.engine.engine import Engine
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFinished, GenerationRequest, TokensArrived
from flowforge.errors import EngineError, InternalError

if TYPE_CHECKING:
    from history_model import HistoryRunner

    from flowforge.engine.core import EngineCore
    from flowforge.engine.handle import EngineSequence

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def request(max_tokens: int, *, ignore_eos: bool = False) -> GenerationRequest:
    return GenerationRequest(SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos))


async def output(sequence: EngineSequence, max_tokens: int) -> list[int]:
    tokens: list[int] = []
    async with aclosing(sequence.generate(request(max_tokens))) as updates:
        async for update in updates:
            if isinstance(update, TokensArrived):
                tokens += update.token_ids
    return tokens


LONG = 15_000
"""Tokens that take seconds: nothing that a test does meanwhile comes too late."""


def engine(*, num_pages: int = 256, page_size: int = 4, max_context_len: int = 1000) -> Engine:
    def make_core() -> EngineCore:
        return history_core(
            num_pages=num_pages, page_size=page_size, max_context_len=max_context_len
        )[0]

    return Engine(make_core)


def patient_engine() -> Engine:
    """With room for LONG tokens."""
    return engine(num_pages=LONG // 2, max_context_len=2 * LONG)


async def test_tokens_arrive_and_join_the_sequence() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)

        assert right_output(PROMPT, 8) == await output(sequence, 8)
        assert [*PROMPT, *right_output(PROMPT, 8)] == sequence.tokens
        await sequence.close()
        assert (await running.settle()).kv.pages_held == 0


async def test_the_last_update_says_why_and_what_it_cost() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        updates = [update async for update in sequence.generate(request(4, ignore_eos=True))]

    end = updates[-1]
    assert isinstance(end, GenerationFinished)
    assert ("length", len(PROMPT), 0, 4, 3) == (
        end.reason,
        end.usage.prefilled_tokens,
        end.usage.reused_tokens,
        end.usage.output_tokens,
        end.usage.written_output_tokens,
    )


async def test_many_tasks_share_one_engine() -> None:
    prompts = [[*PROMPT, n] for n in range(1, 30)]
    outputs: dict[int, list[int]] = {}

    async def client(running: Engine, number: int) -> None:
        sequence = running.open(prompts[number])
        outputs[number] = await output(sequence, 12)
        await sequence.close()

    async with engine(num_pages=24) as running, anyio.create_task_group() as tasks:
        for number in range(len(prompts)):
            tasks.start_soon(client, running, number)

    assert {n: right_output(prompts[n], 12) for n in range(len(prompts))} == outputs


async def test_a_stream_that_is_closed_early_stops_and_keeps_what_was_handed_out() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        async with aclosing(sequence.generate(request(500, ignore_eos=True))) as updates:
            update = await anext(updates)
        assert isinstance(update, TokensArrived)

        assert [*PROMPT, *update.token_ids] == sequence.tokens
        settled = await running.settle()
        assert (0, 0) == (settled.scheduler.num_running, settled.scheduler.num_waiting)
        await running.check_invariants()
        assert right_output(sequence.tokens, 3) == await output(sequence, 3)


async def test_a_cancelled_task_gives_its_pages_back_before_it_ends() -> None:
    async with engine() as running:

        async def client() -> None:
            sequence = running.open(PROMPT)
            try:
                await output(sequence, 900)
            finally:
                await sequence.close()

        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client)
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert running.statistics().kv.pages_held == 0


async def test_a_fork_of_a_generating_sequence_has_the_tokens_of_that_moment() -> None:
    async with engine() as running:
        parent = running.open(PROMPT)
        async with aclosing(parent.generate(request(200, ignore_eos=True))) as updates:
            await anext(updates)
            child = await parent.fork()

        assert len(child.tokens) > len(PROMPT)
        assert right_output(child.tokens, 3) == await output(child, 3)


async def test_leaving_the_engine_ends_generations_with_an_error_and_hangs_nobody() -> None:
    async with patient_engine() as running:
        sequence = running.open(PROMPT)
        updates = sequence.generate(request(LONG, ignore_eos=True))
        await anext(updates)

    with pytest.raises(EngineError, match="the engine was closed"):
        async for _ in updates:
            pass
    await sequence.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        running.open(PROMPT)


async def test_an_engine_frees_what_it_made_and_runs_twice_in_one_process() -> None:
    made: list[weakref.ref[HistoryRunner]] = []

    def make_core() -> EngineCore:
        core, runner, _ = history_core()
        made.append(weakref.ref(runner))
        return core

    for _ in range(2):
        async with Engine(make_core) as running:
            assert right_output(PROMPT, 3) == await output(running.open(PROMPT), 3)
    gc.collect()

    assert [None, None] == [runner() for runner in made]


async def test_an_engine_that_cannot_be_made_raises_where_it_is_started() -> None:
    def make_core() -> EngineCore:
        raise EngineError("EN122", "the weights are damaged")

    with pytest.raises(EngineError, match="the weights are damaged"):
        async with Engine(make_core):
            pass


async def test_an_engine_is_started_once() -> None:
    running = engine()
    async with running:
        with pytest.raises(EngineError, match="started before"):
            await running.__aenter__()


async def test_a_defect_in_the_core_reaches_everyone_who_waits() -> None:
    def make_core() -> EngineCore:
        core, _, kv = history_core()
        kv.commit = lambda *_: (_ for _ in ()).throw(AssertionError("a defect"))  # type: ignore[method-assign]
        return core

    async with Engine(make_core) as running:
        sequence = running.open(PROMPT)
        with pytest.raises(InternalError, match="AssertionError: a defect"):
            await output(sequence, 5)
        with pytest.raises(InternalError, match="AssertionError: a defect"):
            running.open(PROMPT)
        await sequence.close()


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
async def test_an_id_outside_the_vocabulary_is_refused_at_once(token_id: int) -> None:
    async with engine() as running:
        with pytest.raises(EngineError, match=f"token id {token_id} is not in the vocabulary"):
            running.open([1, token_id])


async def test_what_cannot_be_generated_is_said_when_asked() -> None:
    async with engine(num_pages=4, page_size=4) as running:
        with pytest.raises(EngineError, match="an empty prompt"):
            await output(running.open(), 1)
        with pytest.raises(EngineError, match=r"10 tokens and up to 8 new ones .* pool of 16"):
            await output(running.open(PROMPT), 8)


async def test_a_busy_sequence_takes_no_prompt() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        async with aclosing(sequence.generate(request(500, ignore_eos=True))) as updates:
            await anext(updates)
            with pytest.raises(EngineError, match="is generating"):
                sequence.append([1])


async def test_eos_ends_a_text_unless_it_is_ignored() -> None:
    prompt = next([n] * 7 for n in range(1, VOCAB_SIZE) if EOS in right_output([n] * 7, 30))
    async with engine() as running:
        tokens = await output(running.open(prompt), 30)
        ignoring = [
            token
            async for update in running.open(prompt).generate(request(30, ignore_eos=True))
            if isinstance(update, TokensArrived)
            for token in update.token_ids
        ]

    assert EOS == tokens[-1]
    assert 30 == len(ignoring)


async def test_a_saved_prefix_is_restored_without_computing_it_again() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        await sequence.prefill()
        await running.save("opening", sequence)
        await sequence.close()

        restored = await running.restore("opening")
        assert right_output(PROMPT, 4) == await output(restored, 4)
        assert len(PROMPT) == (await running.settle()).prefilled_tokens

        await restored.close()
        await running.forget("opening")
        assert (await running.settle()).kv.pages_held == 0
        with pytest.raises(EngineError, match="no prefix is saved as 'opening'; saved are: none"):
            await running.restore("opening")


async def test_a_saved_prefix_that_lost_its_pages_is_computed_again() -> None:
    async with engine(num_pages=8, page_size=4) as running:
        sequence = running.open(PROMPT)
        await sequence.prefill()
        await running.save("opening", sequence)
        await sequence.close()
        await output(running.open([9] * 24), 8)  # all 8 pages

        restored = await running.restore("opening")

        assert right_output(PROMPT, 4) == await output(restored, 4)
        assert (await running.settle()).kv.evicted_pages > 0


async def test_a_name_stands_for_what_was_saved_last() -> None:
    async with engine() as running:
        for prompt in (PROMPT, [3, *PROMPT]):
            sequence = running.open(prompt)
            await running.save("opening", sequence)
            await sequence.close()

        restored = await running.restore("opening")

        assert [3, *PROMPT] == restored.tokens
        await restored.close()
        assert 1 == (await running.settle()).scheduler.num_idle  # only the saved one


async def test_who_is_needed_soon_keeps_its_pages_longest() -> None:
    """A pool for two prefixes and a half; the third request must push one out."""
    prompts = [[n, *PROMPT, n] for n in (1, 2)]
    async with engine(num_pages=8, page_size=4) as running:
        held = [running.open(prompt) for prompt in prompts]
        for sequence, num_steps in zip(held, (1, 9), strict=True):
            await sequence.prefill()
            sequence.expect_use(num_steps)
        await output(running.open([9, 9, 9, 9, 9, 9, 9, 9, 9]), 4)
        before = (await running.settle()).prefilled_tokens

        await output(held[0], 1)

        assert 0 == (await running.settle()).prefilled_tokens - before


async def test_a_cancelled_fork_leaves_no_sequence_behind() -> None:
    async with engine() as running:
        parent = running.open(PROMPT)
        children: list[EngineSequence] = []
        async with aclosing(parent.generate(request(500, ignore_eos=True))) as updates:
            await anext(updates)
            with anyio.CancelScope() as scope:
                scope.cancel()
                children.append(await parent.fork())
        for sequence in (parent, *children):
            await sequence.close()

        settled = await running.settle()
        assert (0, 0) == (settled.scheduler.num_idle, settled.kv.pages_held)


async def test_a_refused_prompt_leaves_no_sequence_behind() -> None:
    async with engine() as running:
        for wrong in ([-1], [1.5], [True], ["a"]):
            with pytest.raises(EngineError) as caught:
                running.open(wrong)  # type: ignore[arg-type]
            assert caught.value.code == "EN203"

        assert (await running.settle()).scheduler.num_idle == 0


async def test_closing_while_another_task_reads_ends_the_reader() -> None:
    async with patient_engine() as running:
        sequence = running.open(PROMPT)
        async with aclosing(sequence.generate(request(LONG, ignore_eos=True))) as updates:
            await anext(updates)
            await sequence.close()
            with pytest.raises(EngineError, match="closed while generating"):
                async for _ in updates:
                    pass


async def test_nothing_is_opened_before_the_start() -> None:
    with pytest.raises(EngineError, match="the engine is not started"):
        engine().open(PROMPT)


# -- what is given up -----------------------------------------------------------------------------


async def test_a_generation_left_early_says_what_it_cost() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        async with aclosing(sequence.generate(request(100, ignore_eos=True))) as updates:
            async for _ in updates:
                break
        cut = sequence.cut_usage

        assert cut is not None
        assert len(PROMPT) == cut.prompt_tokens == cut.prefilled_tokens
        assert cut.output_tokens >= 1
        assert cut.written_output_tokens in {cut.output_tokens, cut.output_tokens - 1}
        await output(sequence, 1)
        assert sequence.cut_usage is None
        await sequence.close()


async def test_continuations_are_scored_as_one_by_one_and_computed_once() -> None:
    continuations = [[7, 8, 9], [7, 8], [7, 8, 9, 4], [5], [7, 8]]
    async with engine() as running:
        sequence = running.open(PROMPT)
        one_by_one: list[list[float]] = []
        for continuation in continuations:
            fork = await sequence.fork()
            one_by_one.append([one.logprob for one in await fork.score(continuation)])
            await fork.close()
        before = (await running.settle()).prefilled_tokens
        scored = await score_continuations(sequence, continuations)
        after = await running.settle()

        assert one_by_one == [[one.logprob for one in scores] for scores in scored.logprobs]
        # 7 8 · 9 · 4 · 5
        assert 5 == scored.num_computed
        num_computed = scored.usage.prefilled_tokens + scored.num_computed
        assert num_computed == after.prefilled_tokens - before
        assert PROMPT == sequence.tokens
        await sequence.close()
        assert (await running.settle()).kv.pages_held == 0


async def test_an_empty_continuation_is_refused_and_leaves_nothing_held() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)

        with pytest.raises(EngineError, match="EN201"):
            await score_continuations(sequence, [[5], []])

        await sequence.close()
        assert (await running.settle()).kv.pages_held == 0


async def test_a_generation_that_ended_before_it_was_left_is_spent_as_a_whole() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        async with aclosing(sequence.generate(request(3, ignore_eos=True))) as updates:
            async for _ in updates:
                await running.settle()
                while (await running.settle()).generated_tokens < 3:
                    pass
                break
        cut = sequence.cut_usage

        assert cut is not None
        assert 3 == cut.output_tokens
        await sequence.close()
