"""What is said of the next use decides which pages go, and a last use frees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from core_client import Client, output, text
from history_model import Updates, history_core, right_output

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId

if TYPE_CHECKING:
    from flowforge.engine.kv.cache import KvCache


def computed(client: Client, tokens: list[int]) -> SequenceId:
    """An idle sequence whose tokens are computed."""
    sequence = client.open(tokens)
    client.core.prefill(sequence, Updates())
    client.run()
    return sequence


def cached_len(kv: KvCache, tokens: list[int]) -> int:
    return kv.match_len(Namespace(), tokens, len(tokens))


def small() -> tuple[Client, KvCache]:
    """A pool of 16 pages of 4 tokens."""
    core, _, kv = history_core(num_pages=16, page_size=4, max_step_tokens=64)
    return Client(core), kv


def press(client: Client, num_pages: int) -> None:
    """Let somebody need that many pages, whose own are not kept."""
    sequence = computed(client, text(4 * num_pages, first=20))
    client.core.expect_last_use(sequence)
    client.core.close(sequence)


def test_an_idle_sequence_loses_no_more_pages_than_are_needed() -> None:
    client, kv = small()
    computed(client, text(48))

    press(client, 6)

    assert 4 * (16 - 6) == cached_len(kv, text(48))


def test_what_is_needed_last_goes_first() -> None:
    client, kv = small()
    texts = [text(24, first=n) for n in (1, 2)]
    soon, late = (computed(client, tokens) for tokens in texts)
    client.core.expect_use(soon, 1)
    client.core.expect_use(late, 5)

    press(client, 8)

    assert [24, 8] == [cached_len(kv, tokens) for tokens in texts]


def test_of_equal_steps_what_is_expected_latest_goes_first() -> None:
    client, kv = small()
    texts = [text(24, first=n) for n in (1, 2)]
    for tokens, ready_at_s in zip(texts, (30.0, 60.0), strict=True):
        client.core.expect_use(computed(client, tokens), 1, ready_at_s)

    press(client, 8)

    assert [24, 8] == [cached_len(kv, tokens) for tokens in texts]


def test_what_is_said_after_the_pages_were_left_counts() -> None:
    client, kv = small()
    texts = [text(24, first=n) for n in (1, 2)]
    first, second = (computed(client, tokens) for tokens in texts)
    press(client, 5)  # one page of the first is gone, and nobody holds a page
    assert [20, 24] == [cached_len(kv, tokens) for tokens in texts]

    client.core.expect_use(first, 1)
    client.core.expect_use(second, 9)
    press(client, 8)

    assert [20, 12] == [cached_len(kv, tokens) for tokens in texts]


def test_a_lower_priority_goes_before_a_later_use() -> None:
    client, kv = small()
    texts = [text(24, first=n) for n in (1, 2)]
    requests = [(texts[0], 1), (texts[1], 0)]
    for tokens, priority in requests:
        sequence = client.open(tokens)
        client.start(sequence, 1, priority=priority)
        client.run()
        client.core.expect_use(sequence, 9 if priority else 1)

    press(client, 8)

    assert [24, 8] == [cached_len(kv, tokens) for tokens in texts]


def test_pages_that_nobody_expects_to_use_go_before_all_others() -> None:
    client, kv = small()
    computed(client, text(24))
    ended = computed(client, text(24, first=2))
    client.core.close(ended)

    press(client, 10)

    assert [24, 0] == [cached_len(kv, text(24, first=n)) for n in (1, 2)]


def test_an_expectation_moves_down_with_pages_that_others_compute_again() -> None:
    """A sequence lost its pages; a fork computed them again and ended; it still needs them."""
    client, kv = small()
    parent = computed(client, text(24))
    client.core.expect_use(parent, 1)
    other = computed(client, text(56, first=7))
    assert 8 == cached_len(kv, text(24))
    client.core.close(other)
    child = client.fork(parent)
    client.start(child, 1)
    client.run()
    client.core.close(child)

    press(client, 10)

    assert 24 == cached_len(kv, text(24))


def test_a_stated_last_use_frees_the_pages_at_once() -> None:
    client, kv = small()
    sequence = computed(client, text(22))
    client.core.expect_last_use(sequence)

    client.core.close(sequence)

    assert (16, 0) == (kv.statistics().pages_free, kv.statistics().pages_cached)


def test_without_freeing_last_uses_the_pages_stay_until_they_are_needed() -> None:
    policy = SchedulingPolicy(frees_last_uses=False)
    core, _, kv = history_core(num_pages=16, page_size=4, max_step_tokens=64, policy=policy)
    client = Client(core)
    sequence = computed(client, text(22))
    client.core.expect_last_use(sequence)

    client.core.close(sequence)

    assert 22 == cached_len(kv, text(22))


def test_a_last_use_frees_nothing_that_others_hold_expect_or_left_open() -> None:
    client, kv = small()
    prefix = text(8)
    client.core.close(computed(client, prefix))  # left open: somebody may come back
    parent = computed(client, [*prefix, *text(8, first=3)])
    child = client.fork(parent)
    client.core.append(child, text(8, first=5))
    client.core.prefill(child, Updates())
    client.run()

    for sequence in (child, parent):
        client.core.expect_last_use(sequence)
        client.core.close(sequence)
        assert {child: 12, parent: 14}[sequence] == kv.statistics().pages_free

    assert 8 == cached_len(kv, prefix)


@pytest.mark.parametrize("num_more", [4, 1])
def test_a_last_use_leaves_rows_with_which_another_begins_its_next_page(num_more: int) -> None:
    """Of a page of 4 the first 2 are common: in a full page, or in one filled in part."""
    client, kv = small()
    coming = client.open([*text(10), *text(8, first=5)])
    client.core.expect_use(coming, 1)
    ended = computed(client, [*text(10), *text(num_more, first=9)])
    client.core.expect_last_use(ended)

    client.core.close(ended)

    assert 10 == cached_len(kv, [*text(10), *text(8, first=5)])


def test_a_last_use_stated_while_it_generates_counts_at_the_end() -> None:
    client, kv = small()
    sequence = client.open(text(10))
    updates = Updates()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    client.core.generate(sequence, GenerationRequest(params), updates)
    client.core.step()
    client.core.expect_last_use(sequence)
    client.core.preempt(sequence)
    client.run()

    assert 8 == len(output(updates))
    assert kv.statistics().pages_free < 16
    client.core.close(sequence)
    assert 16 == kv.statistics().pages_free


@pytest.mark.parametrize("num_tokens", [0, 3, 20])
def test_namespaces_leave_nothing_behind(num_tokens: int) -> None:
    core, _, kv = history_core(num_pages=16, page_size=4)
    client = Client(core)
    for number in range(50):
        sequence = client.open(text(num_tokens), Namespace(salt=str(number)))
        if num_tokens:
            client.start(sequence, 2)
            client.run()
        core.close(sequence)
    assert kv.statistics().num_namespaces <= 16

    kv.drop_cached()

    core.check_invariants()
    assert 0 == kv.statistics().num_namespaces


def test_a_preempted_sequence_finds_its_pages_before_others_lose_theirs() -> None:
    """It waits, so its next use is now."""
    client, kv = small()
    idle = computed(client, text(24, first=2))
    client.core.expect_use(idle, 1)
    updates, running = Updates(), client.open(text(20))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    client.core.generate(running, GenerationRequest(params), updates)
    client.core.step()
    client.core.preempt(running)

    client.request(text(40, first=20), 1, priority=5)
    client.core.step()

    assert 20 == cached_len(kv, text(20))
    assert 4 >= cached_len(kv, text(24, first=2))
    client.run()
    assert right_output(text(20), 1) == output(updates)[:1]


def test_pages_of_tokens_that_were_cut_off_are_not_expected_any_more() -> None:
    """Found by random operations: the page of the cut tokens could not be evicted."""
    client, kv = small()
    client.core.close(computed(client, text(4, first=2)))
    sequence = computed(client, text(11))
    press(client, 13)  # one more than is free: the idle sequence holds no page any more
    assert 11 == cached_len(kv, text(11))
    for num_steps in range(200):  # until no place in the order is left from before
        client.core.expect_use(sequence, num_steps)

    client.core.truncate(sequence, 9)

    client.core.check_invariants()
    other = computed(client, text(8, first=5))
    client.core.expect_use(other, 1)
    press(client, 12)
    assert 8 == cached_len(kv, text(11))
