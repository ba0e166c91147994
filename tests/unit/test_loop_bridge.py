"""A mailbox hands items from a thread to a task and keeps neither the loop nor a cancel waiting."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from flowforge.engine.loop_bridge import LoopCaller, Mailbox, WakeUps

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_a_take_with_items_waiting_can_be_cancelled_and_loses_none() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.take()

    assert scope.cancelled_caught
    assert [1] == mailbox.take_waiting()


async def test_a_reader_that_always_finds_items_lets_other_tasks_run() -> None:
    mailbox: Mailbox[int] = Mailbox()
    has_run = anyio.Event()

    async def other() -> None:
        has_run.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for number in range(10):
            mailbox.put(number)
            assert [number] == await mailbox.take()
        assert has_run.is_set()


async def test_readers_of_one_loop_are_woken_together_at_the_end_of_a_block() -> None:
    wake_ups = WakeUps()
    mailboxes = [Mailbox[int](wake_ups) for _ in range(3)]
    taken: list[int] = []
    num_woken: list[int] = []

    async def read(mailbox: Mailbox[int]) -> None:
        taken.extend(await mailbox.take())

    def put_all() -> None:
        with wake_ups.held():
            for number, mailbox in enumerate(mailboxes):
                mailbox.put(number)
            num_woken.append(len(taken))
        # What is put behind the block wakes at once.
        mailboxes[0].put(9)

    async with anyio.create_task_group() as tasks:
        for mailbox in mailboxes:
            tasks.start_soon(read, mailbox)
        # Who comes to its mailbox later finds the item there and need not be woken.
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(put_all)

    assert [0, 1, 2] == sorted(taken)[:3]
    assert [0] == num_woken


async def test_a_block_that_fails_wakes_its_readers_all_the_same() -> None:
    wake_ups = WakeUps()
    mailbox = Mailbox[int](wake_ups)

    def put_and_fail() -> None:
        with wake_ups.held():
            mailbox.put(1)
            raise ValueError

    with pytest.raises(ValueError):
        await anyio.to_thread.run_sync(put_and_fail)

    assert [1] == await mailbox.take()


async def test_a_block_tells_each_loop_once() -> None:
    class Counting(LoopCaller):
        num_calls = 0

        def call(self, function: Callable[[], object]) -> None:
            Counting.num_calls += 1
            super().call(function)

    wake_ups, called, are_all_called = WakeUps(), list[int](), anyio.Event()
    with wake_ups.held():
        for number in range(4):
            wake_ups.wake(Counting(), partial(called.append, number))
        wake_ups.wake(Counting(), are_all_called.set)
    await are_all_called.wait()

    assert [0, 1, 2, 3] == called
    assert Counting.num_calls == 1


async def test_a_reader_that_rests_is_woken_by_the_end_alone_and_takes_all_in_order() -> None:
    mailbox: Mailbox[int] = Mailbox(may_wait=lambda item: item > 0)
    taken: list[int] = []

    async def read() -> None:
        await mailbox.rest(seconds=3600)
        taken.extend(await mailbox.take())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for item in (1, 2):
            await anyio.wait_all_tasks_blocked()
            mailbox.put(item)
        await anyio.wait_all_tasks_blocked()
        assert [] == taken
        mailbox.put(0)

    assert [1, 2, 0] == taken


@pytest.mark.parametrize("before", [[0], [1, 0]])
async def test_nobody_rests_when_the_end_is_there(before: list[int]) -> None:
    mailbox: Mailbox[int] = Mailbox(may_wait=lambda item: item > 0)
    for item in before:
        mailbox.put(item)

    await mailbox.rest(seconds=3600)

    assert before == await mailbox.take()


async def test_a_rest_ends_by_itself_and_the_next_item_wakes_again() -> None:
    mailbox: Mailbox[int] = Mailbox(may_wait=lambda item: item > 0)
    await mailbox.rest(seconds=0.001)

    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            assert [1] == await mailbox.take()

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(1)


async def test_a_rest_that_is_cancelled_loses_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox(may_wait=lambda item: item > 0)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.rest(seconds=3600)
    mailbox.put(1)

    assert [1] == await mailbox.take()
