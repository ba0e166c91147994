"""200 concurrent requests that count upward in a small pool, with aborts and forks at random.

After exllamav3's stress test: the model goes on counting, so a jump in an output is a row of
somebody else's text. Here the stand-in counts, and also checks each row that it reads. The same
with a real model: benchmarks/soak_engine.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import history_model
from core_client import Client, is_over, output
from history_model import VOCAB_SIZE, history_core

from flowforge.engine.policy import SchedulingPolicy

if TYPE_CHECKING:
    import pytest

    from flowforge.engine.sequence import SequenceId

NUM_REQUESTS = 200


def count_on(history: tuple[int, ...]) -> int:
    """The number behind the last; never EOS."""
    return history[-1] % (VOCAB_SIZE - 1) + 1


def counted(first: int, length: int) -> list[int]:
    return [1 + (first - 1 + n) % (VOCAB_SIZE - 1) for n in range(length)]


def test_no_count_jumps_under_pressure_aborts_and_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_model, "next_token", count_on)
    # Ten requests at most fit at once, and none leaves room for what it will write.
    policy = SchedulingPolicy(spares_output=False)
    core, _, kv = history_core(
        num_pages=60, page_size=4, max_step_tokens=64, max_running=16, policy=policy
    )
    client, draw = Client(core), random.Random(11)
    requests: list[tuple[SequenceId, list[int], int]] = []
    for _ in range(NUM_REQUESTS):
        first, length = draw.randint(1, 49), draw.randint(1, 20)
        requests.append((client.open(counted(first, length)), counted(first, length), 12))
    outputs = [client.start(sequence, most) for sequence, _, most in requests]
    aborted: set[int] = set()

    while core.has_work:
        core.step()
        if len(requests) < 2 * NUM_REQUESTS and draw.random() < 0.5:
            number = draw.randrange(len(requests))
            sequence, prompt, _ = requests[number]
            if draw.random() < 0.3:
                core.abort(sequence)
                aborted.add(number)
            else:
                history = [*prompt, *output(outputs[number])]
                child = client.fork(sequence)
                requests.append((child, history, 5))
                outputs.append(client.start(child, 5))

    assert len(requests) > NUM_REQUESTS
    assert aborted
    assert core.statistics().scheduler.num_preemptions > 0
    for number, ((sequence, prompt, most), updates) in enumerate(
        zip(requests, outputs, strict=True)
    ):
        right = counted(prompt[-1] % 49 + 1, most)
        assert right[: len(output(updates))] == output(updates)
        assert number in aborted or (is_over(updates) and len(output(updates)) == most)
        core.close(sequence)
    assert 0 == kv.statistics().pages_held
