"""Whatever one caller gives or breaks off, the engine goes on for all others and loses nothing."""

from __future__ import annotations

import asyncio  # noqa: TID251 - its own cancellation does not know anyio's shields
import threading
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from history_model import VOCAB_SIZE, history_core, right_output

from flowforge.engine.engine import Engine
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.errors import EngineError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.core import EngineCore
    from flowforge.engine.handle import EngineSequence

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def engine() -> Engine:
    return Engine(lambda: history_core(num_pages=256, page_size=4)[0])


def request(max_tokens: int) -> GenerationRequest:
    return GenerationRequest(SamplingParams(max_tokens=max_tokens, ignore_eos=True))


async def output(sequence: EngineSequence, max_tokens: int) -> list[int]:
    tokens: list[int] = []
    async with aclosing(sequence.generate(request(max_tokens))) as updates:
        async for update in updates:
            if isinstance(update, TokensArrived):
                tokens += update.token_ids
    return tokens


# -- wrong arguments ------------------------------------------------------------------------------


def _expect(num_steps: Any) -> Callable[[Engine, EngineSequence], object]:
    return lambda _, sequence: sequence.expect_use(num_steps)


def _truncate(num_tokens: Any) -> Callable[[Engine, EngineSequence], object]:
    return lambda _, sequence: sequence.truncate(num_tokens)


def _score(num_top: Any) -> Callable[[Engine, EngineSequence], object]:
    return lambda _, sequence: sequence.score([7, 8], num_top=num_top)


def _open_in(namespace: Any) -> Callable[[Engine, EngineSequence], object]:
    return lambda engine, _: engine.open(PROMPT, namespace=namespace)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        *((_expect(value), "num_steps must be a number") for value in ("soon", None, True)),
        *((_expect(value), "num_steps must be at least 0") for value in (-1, float("nan"))),
        *((_truncate(value), "num_tokens must be an integer") for value in ("a", 1.0, None)),
        (_truncate(-1), "num_tokens must be at least 0"),
        *((_score(value), "num_top must be an integer") for value in ("x", 1.5)),
        *((_score(value), "num_top must be 0 to 100") for value in (-1, 101)),
        *((_open_in(value), "namespace must be a Namespace") for value in ("x", ["x"], 5, "")),
    ],
)
async def test_a_wrong_argument_is_refused_and_harms_nobody(
    ask: Callable[[Engine, EngineSequence], object], message: str
) -> None:
    async with engine() as running:
        beside, sequence = running.open([7, *PROMPT]), running.open(PROMPT)
        found: list[int] = []

        async def go_on() -> None:
            found.extend(await output(beside, 20))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            await anyio.lowlevel.checkpoint()
            with pytest.raises(EngineError, match=f"EN210.*{message}, got "):
                answer: Any = ask(running, sequence)
                if answer is not None:
                    await answer

        assert PROMPT == sequence.tokens
        assert 20 == len(found)
        assert right_output(PROMPT, 1) == await output(sequence, 1)
        await running.check_invariants()


async def test_tokens_may_come_from_an_iterator() -> None:
    """What is read to be checked cannot be read again to be used."""
    async with engine() as running:
        sequence = running.open(iter(PROMPT[:4]))  # type: ignore[arg-type]  # the case
        sequence.append(iter(PROMPT[4:6]))  # type: ignore[arg-type]  # the case
        await sequence.score(iter(PROMPT[6:]))  # type: ignore[arg-type]  # the case

        assert PROMPT == sequence.tokens
        assert right_output(PROMPT, 1) == await output(sequence, 1)


async def test_a_token_id_of_numpy_is_refused_with_the_way_out() -> None:
    async with engine() as running:
        with pytest.raises(EngineError, match=r"EN203.*integer, got .*5.*\n.*tolist\(\)"):
            running.open(np.array([5]))  # type: ignore[arg-type]  # the case
        with pytest.raises(EngineError, match=f"EN203.*{VOCAB_SIZE} ids"):
            running.open([VOCAB_SIZE])


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_a_score_that_does_not_end_leaves_the_sequence_as_it_was(end: str) -> None:
    core, runner, _ = history_core(num_pages=256, page_size=4)
    async with Engine(lambda: core) as running:
        sequence = running.open(PROMPT)
        if end == "fail":
            runner.error = RuntimeError("broken on purpose")
            with pytest.raises(EngineError, match="EN220"):
                await sequence.score([7, 8, 9])
            runner.error = None
        else:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await sequence.score([7, 8, 9])

        assert PROMPT == sequence.tokens
        assert right_output(PROMPT, 3) == await output(sequence, 3)


async def test_commands_behind_one_that_breaks_the_engine_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = history_core(num_pages=256, page_size=4)[0]
    gate = threading.Event()

    def wait(*_: object) -> None:
        gate.wait(10)

    monkeypatch.setattr(core, "expect_use", wait)
    monkeypatch.setattr(core, "expect_last_use", _break)
    async with Engine(lambda: core) as running:
        sequence = running.open(PROMPT)
        sequence.expect_use(1)
        sequence.expect_last_use()

        async def read() -> None:
            with pytest.raises(InternalError, match="broken on purpose"):
                await output(sequence, 3)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                tasks.start_soon(running.settle)
                await anyio.wait_all_tasks_blocked()
                gate.set()


def _break(*_: object) -> None:
    raise RuntimeError("broken on purpose")


async def test_an_engine_that_was_not_started_says_so() -> None:
    waiting = engine()
    with anyio.fail_after(2):
        for ask in (waiting.settle, waiting.namespace_statistics, waiting.check_invariants):
            with pytest.raises(EngineError, match=r"EN206.*not started"):
                await ask()
    with pytest.raises(EngineError, match=r"EN206.*not started"):
        _ = waiting.vocab_size
    with pytest.raises(EngineError, match=r"EN206.*not started"):
        _ = waiting.capacity


async def test_an_engine_that_was_left_cannot_be_started() -> None:
    left = engine()
    await left.__aexit__(None, None, None)

    with pytest.raises(EngineError, match=r"EN206.*closed"):
        await left.__aenter__()


# -- saves at the same time -----------------------------------------------------------------------


async def test_saves_of_one_name_at_the_same_time_keep_one() -> None:
    async with engine() as running:
        sequence = running.open(PROMPT)
        async with aclosing(sequence.generate(request(200))) as updates:
            await anext(updates)
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(running.save, "prompt", sequence)
        await sequence.close()
        await running.forget("prompt")

        statistics = await running.settle()
        assert 0 == statistics.scheduler.num_idle
        assert 0 == statistics.kv.pages_held


# -- what asyncio itself cancels, which no shield of anyio holds off -------------------------------


def test_a_start_that_asyncio_cancels_leaves_no_thread() -> None:
    made, go_on = threading.Event(), threading.Event()

    def make_core() -> EngineCore:
        made.set()
        go_on.wait(10)
        return history_core(num_pages=256)[0]

    async def use() -> None:
        async with Engine(make_core):
            pytest.fail("the start was cancelled")

    async def main() -> None:
        using = asyncio.create_task(use())
        await asyncio.to_thread(made.wait, 10)
        using.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await using

    before = threading.active_count()
    asyncio.run(main())

    _wait_until(lambda: threading.active_count() <= before)


def _wait_until(is_met: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(500):
        if is_met():
            return
        pause.wait(0.01)
    pytest.fail("it never came about")


def test_a_generation_that_asyncio_cancels_twice_leaves_the_sequence_usable() -> None:
    async def main() -> None:
        async with engine() as running:
            sequence = running.open(PROMPT)
            first = asyncio.Event()

            async def read() -> None:
                async with aclosing(sequence.generate(request(500))) as updates:
                    async for _ in updates:
                        first.set()
                        # The core may have all tokens ready before anyone could cancel.
                        await asyncio.Event().wait()

            reading = asyncio.create_task(read())
            await first.wait()
            reading.cancel()
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

            expected = right_output_of(sequence.tokens, 3)
            assert expected == await output(sequence, 3)
            await sequence.close()
            assert 0 == (await running.settle()).kv.pages_held

    asyncio.run(main())


def right_output_of(tokens: list[int], num_tokens: int) -> list[int]:
    """As `right_output`, and on behind end tokens."""
    so_far = list(tokens)
    for _ in range(num_tokens):
        so_far += right_output(so_far, 1)
    return so_far[len(tokens) :]


def test_forks_that_asyncio_cancels_are_given_back() -> None:
    async def main() -> None:
        async with engine() as running:
            sequence = running.open(PROMPT)
            async with aclosing(sequence.generate(request(500))) as updates:
                await anext(updates)
                for _ in range(5):
                    forking = asyncio.create_task(sequence.fork())
                    await asyncio.sleep(0)
                    forking.cancel()
                    with suppress(asyncio.CancelledError):
                        await (await forking).close()
            await sequence.close()
            assert 0 == (await running.settle()).scheduler.num_idle

    asyncio.run(main())
