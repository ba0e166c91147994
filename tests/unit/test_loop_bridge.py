"""A mailbox hands items from a thread to a task and keeps neither the loop nor a cancel waiting."""

from __future__ import annotations

import anyio

from flowforge.engine.loop_bridge import Mailbox


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
