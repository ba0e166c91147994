"""What the engine counts and times, against counts made by hand and by brute force."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from core_client import Client, output, text
from history_model import Updates, history_core
from hypothesis import given
from hypothesis import strategies as st

from flowforge.engine.kv.nodes import Node
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.kv.sharing import shared_runs
from flowforge.engine.meter import Histogram
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId

if TYPE_CHECKING:
    from flowforge.engine.step_plan import StepPlan

COMMON = Namespace()


class Ticks:
    """A clock that moves by one second at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def ignoring_eos(max_tokens: int) -> GenerationRequest:
    return GenerationRequest(SamplingParams(max_tokens=max_tokens, ignore_eos=True))


# -- distributions --------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_a_quantile_is_right_to_its_bucket(share: float) -> None:
    drawn = random.Random(3)
    seconds = [drawn.lognormvariate(-3, 2) for _ in range(5000)]
    histogram = Histogram()
    for value in seconds:
        histogram.observe(value)

    found = histogram.snapshot().quantile_s(share)

    expected = float(np.quantile(seconds, share))
    assert expected == pytest.approx(found, rel=0.42, abs=1e-4)  # bounds are 1.41 apart


def test_a_distribution_has_count_mean_and_maximum() -> None:
    histogram = Histogram()
    empty = histogram.snapshot()
    for value in (0.5, 1.5, 1000.0, 0.0):
        histogram.observe(value)
    found = histogram.snapshot()

    assert (0, 0.0, 0.0) == (empty.count, empty.mean_s, empty.quantile_s(0.5))
    assert (4, 250.5, 1000.0) == (found.count, found.mean_s, found.max_s)
    assert 1000.0 == found.quantile_s(1)
    assert (4, 1002.0) == (found.since(empty).count, found.since(empty).total_s)
    assert 0 == found.since(found).count


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Histogram().snapshot().quantile_s(share)


# -- shared reads ---------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 1), max_size=7), max_size=9))
def test_pages_read_again_are_those_that_brute_force_counts(walks: list[list[int]]) -> None:
    root = Node((), None, None, 0, COMMON)
    paths: list[list[Node]] = []
    for walk in walks:
        node, path = root, list[Node]()
        for step in walk:
            if (step,) not in node.children:
                node.children[(step,)] = Node((step,), None, node, node.depth + 1, COMMON)
            node = node.children[(step,)]
            path.append(node)
        paths.append(path)

    expected = sum(map(len, paths)) - len({id(node) for path in paths for node in path})
    assert expected == sum(run.num_reread for run in shared_runs(paths))


def test_rows_of_branches_count_for_each_and_once_together() -> None:
    core, runner, kv = history_core(page_size=4, max_step_tokens=64)
    client = Client(core)
    parent = client.open(text(21))
    client.start(parent, 2)
    client.run()
    for branch in range(3):
        child = client.fork(parent)
        core.append(child, [branch + 1])
        core.generate(child, ignoring_eos(6), Updates())

    client.run()

    logical, distinct = 0, 0
    for plan in runner.plans:
        logical += sum(chunk.stop for chunk in plan.chunks)
        distinct += distinct_rows(plan)
    found = core.statistics().reads
    assert (logical, distinct) == (found.logical_rows, found.distinct_rows)
    assert logical - distinct == found.shared_rows > 0
    assert logical / distinct == found.ratio > 1.5
    assert kv.statistics().pages_total == 64


def distinct_rows(plan: StepPlan) -> int:
    """Rows by their page: a full one is known by its text, another by its sequence."""
    rows: set[tuple[object, ...]] = set()
    for chunk in plan.chunks:
        sequence = chunk.sequence
        for position in range(chunk.stop):
            page_end = position // 4 * 4 + 4
            is_full = page_end <= chunk.start
            owner = tuple(sequence.tokens[:page_end]) if is_full else sequence.id
            rows.add((owner, position))
    return len(rows)


# -- requests -------------------------------------------------------------------------------------


def test_latencies_are_those_of_the_clock() -> None:
    """A look at the clock for: submission; a step's start, launch and read, each with its end."""
    clock = Ticks()
    core, _, _ = history_core(clock=clock)
    core.open(SequenceId(1), COMMON)
    core.append(SequenceId(1), text(5))
    submitted_at_s = clock.now_s + 1
    core.generate(SequenceId(1), ignoring_eos(3), Updates())

    while core.has_work:
        core.step()

    found = core.statistics()
    # Looks after the submission: start 1, launch 2, its end 3, read 4, its end 5, first token 6,
    # step's end 7; start 8, launch 9 to 10, read 11 to 12, step's end 13; start 14, launch 15 to
    # 16, read 17 to 18, usage 19.
    assert (1, 2.0) == (found.latencies.queue_s.count, found.latencies.queue_s.total_s)
    assert 6.0 == found.latencies.ttft_s.total_s
    assert 19.0 == found.latencies.total_s.total_s
    assert (19.0 - 6.0) / 2 == found.latencies.tpot_s.total_s
    assert submitted_at_s == 2
    assert (3, 6.0) == (found.steps.forward_s.count, found.steps.forward_s.total_s)
    assert 3 == found.steps.step_s.count
    assert found.steps.host_s == found.steps.step_s.total_s - 6.0 > 0
    assert 3 / found.steps.step_s.total_s == found.tokens_per_s


def test_a_request_counts_once_by_how_it_ended() -> None:
    core, runner, _ = history_core()
    client = Client(core)
    stopping = next(p for p in (text(n) for n in range(1, 40)) if 0 in output_of(p, 30))
    client.request(stopping, 30)
    client.run()
    client.request(text(5), 1)
    client.run()
    aborted, closed = client.open(text(6)), client.open(text(7))
    for sequence in (aborted, closed):
        core.generate(sequence, ignoring_eos(20), Updates())
    core.step()
    core.abort(aborted)
    core.abort(aborted)
    core.close(closed)
    failing = client.open(text(9, first=8))
    core.generate(failing, ignoring_eos(20), Updates())
    runner.error = RuntimeError("broken")
    core.step()
    runner.error = None
    under_way = client.open(text(8))
    core.generate(under_way, ignoring_eos(20), Updates())
    core.step()

    found = core.statistics().requests

    assert (6, 1, 1, 1, 2) == (
        found.submitted,
        found.stopped,
        found.length_limited,
        found.failed,
        found.aborted,
    )


def output_of(prompt: list[int], max_tokens: int) -> list[int]:
    client = Client(history_core()[0])
    updates = client.request(prompt, max_tokens)
    client.run()
    return output(updates)


def test_the_hit_rate_is_of_prompts_at_their_first_admission() -> None:
    core, _, _ = history_core(page_size=4)
    client = Client(core)
    client.request(text(12), 1)
    client.run()
    client.request([*text(12), 40, 41, 42, 43], 1)
    client.run()

    found = core.statistics()

    assert (28, 12) == (found.prefix_cache.queried_tokens, found.prefix_cache.hit_tokens)
    assert 12 / 28 == found.prefix_cache.hit_rate
    assert 16 == found.prefilled_tokens


def test_each_namespace_has_its_own_counts() -> None:
    core, _, _ = history_core()
    tenants = [Namespace(salt="a"), Namespace(salt="b")]
    for number, tenant in enumerate((*tenants, tenants[0])):
        sequence = SequenceId(number + 1)
        core.open(sequence, tenant)
        core.append(sequence, text(8))
        core.generate(sequence, ignoring_eos(2), Updates())
        while core.has_work:
            core.step()

    found = core.namespace_statistics()

    a, b = (found[tenant] for tenant in tenants)
    assert (2, 16, 8, 4) == (
        a.requests,
        a.prefix_cache.queried_tokens,
        a.prefix_cache.hit_tokens,
        a.generated_tokens,
    )
    assert (1, 8, 0, 2) == (
        b.requests,
        b.prefix_cache.queried_tokens,
        b.prefix_cache.hit_tokens,
        b.generated_tokens,
    )


def test_namespaces_without_end_take_bounded_memory() -> None:
    core, _, _ = history_core()
    for number in range(1100):
        sequence = SequenceId(number + 1)
        core.open(sequence, Namespace(salt=str(number)))
        core.append(sequence, [1])
        core.generate(sequence, ignoring_eos(1), Updates())
        core.step()
        core.close(sequence)

    found = core.namespace_statistics()

    assert 1024 == len(found)
    assert Namespace(salt="1099") in found
    assert Namespace(salt="0") not in found


def test_an_interval_counts_what_lies_between_two_snapshots() -> None:
    clock = Ticks()
    core, _, _ = history_core(clock=clock)
    client = Client(core)
    client.request(text(9), 4)
    client.run()
    before = core.statistics()
    client.request([*text(9), 44], 5)
    client.run()
    after = core.statistics()

    interval = after.since(before)

    assert 1 == interval.prefilled_tokens
    assert (10, 9) == (interval.prefix_cache.queried_tokens, interval.prefix_cache.hit_tokens)
    assert after.generated_tokens - before.generated_tokens == interval.generated_tokens > 0
    assert 1 == interval.ttft_s.count
    assert after.uptime_s - before.uptime_s == interval.seconds
    assert interval.generated_tokens / interval.seconds == interval.tokens_per_s
