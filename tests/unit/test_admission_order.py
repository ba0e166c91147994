"""Who is admitted first, who waits, and that nobody waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from core_client import Client, is_over, output, text, usage_of
from history_model import Updates, history_core, right_output

from flowforge.engine import admission
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.policy import SchedulingPolicy

if TYPE_CHECKING:
    from flowforge.engine.core import EngineCore

PREFIX = text(320)


def order_of_ends(core: EngineCore, requests: dict[str, Updates]) -> list[str]:
    """Run to the end; the names in the order in which they came to theirs."""
    ended: list[str] = []
    while core.has_work:
        core.step()
        ended += [name for name, one in requests.items() if is_over(one) and name not in ended]
    return ended


def one_at_a_time(policy: SchedulingPolicy | None = None) -> Client:
    """A core that runs one sequence at a time and knows `PREFIX`."""
    core, _, _ = history_core(
        num_pages=400, page_size=4, max_step_tokens=512, max_running=1, policy=policy
    )
    client = Client(core)
    client.request(PREFIX, 1)
    client.run()
    return client


def test_of_equal_priority_the_longest_cached_prefix_goes_first() -> None:
    client = one_at_a_time()

    requests = {
        "none": client.request(text(30, first=9), 1),
        "part": client.request([*PREFIX[:200], *text(9, first=9)], 1),
        "whole": client.request([*PREFIX, *text(9, first=9)], 1),
    }

    assert ["whole", "part", "none"] == order_of_ends(client.core, requests)


def test_priority_goes_before_prefix() -> None:
    client = one_at_a_time()

    requests = {
        "cached": client.request([*PREFIX, 9], 1),
        "urgent": client.request(text(30, first=9), 1, priority=1),
    }

    assert ["urgent", "cached"] == order_of_ends(client.core, requests)


def test_of_equal_prefixes_the_one_that_came_first_goes_first() -> None:
    client = one_at_a_time()

    requests = {name: client.request([*PREFIX, *text(9, first=9)], 1) for name in "abc"}

    assert ["a", "b", "c"] == order_of_ends(client.core, requests)


@pytest.mark.parametrize(("is_on", "order"), [(True, ["long", "short", "none"]),
                                              (False, ["none", "short", "long"])])  # fmt: skip
def test_of_equal_priority_who_has_more_behind_it_goes_first(is_on: bool, order: list[str]) -> None:
    client = one_at_a_time(SchedulingPolicy(critical_first=is_on))
    chains = {"none": 0, "short": 40, "long": 200}

    requests = {
        name: client.request(text(30, first=first), 1, num_following=num_following)
        for first, (name, num_following) in enumerate(chains.items(), 9)
    }

    assert order == order_of_ends(client.core, requests)


@pytest.mark.parametrize(
    ("num_following", "order"), [(40, ["long", "short", "first"]), (0, ["first", "short", "long"])]
)
def test_its_own_tokens_are_part_of_a_chain_and_of_nothing_else(
    num_following: int, order: list[str]
) -> None:
    client = one_at_a_time()
    own = {"first": 1, "short": 2, "long": 9}

    requests = {
        name: client.request(text(30, first=first), max_tokens, num_following=num_following)
        for first, (name, max_tokens) in enumerate(own.items(), 9)
    }

    assert order == order_of_ends(client.core, requests)


def test_priority_goes_before_what_is_behind() -> None:
    client = one_at_a_time()

    requests = {
        "long": client.request(text(30, first=10), 1, num_following=10_000),
        "urgent": client.request(text(30, first=9), 1, priority=1),
    }

    assert ["urgent", "long"] == order_of_ends(client.core, requests)


def steps_until_admitted(client: Client, most_steps: int, *, num_following: int = 0) -> int | None:
    """A request without a hit waits while every step brings two that hit; None: it starves."""
    waiting = client.request(text(30, first=9), 1)
    for num_steps in range(1, most_steps + 1):
        for number in range(2):
            tokens = [*PREFIX, 1 + num_steps % 49, 1 + number]
            client.request(tokens, 1, num_following=num_following)
        client.core.step()
        if output(waiting):
            return num_steps
    return None


def test_a_request_without_a_hit_is_admitted_under_endless_hits() -> None:
    """Those that overtake come within 320 / 32 steps: 20 requests, of a step each, and itself."""
    num_steps = steps_until_admitted(one_at_a_time(), most_steps=100)

    assert num_steps is not None
    assert 1 < num_steps <= 10 + 20 + 1


def test_a_request_with_nothing_behind_it_is_admitted_under_endless_long_chains() -> None:
    """They are worth 320 tokens of prefix and 2 times 160 of what is behind: 20 steps."""
    num_steps = steps_until_admitted(one_at_a_time(), most_steps=100, num_following=160)

    assert num_steps is not None
    assert 10 < num_steps <= 20 + 40 + 1


def test_without_the_bonus_for_waiting_it_would_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""
    monkeypatch.setattr(admission, "_AGE_BONUS", 0)

    assert steps_until_admitted(one_at_a_time(), most_steps=100) is None


def test_requests_beyond_those_that_are_ordered_are_admitted_too() -> None:
    core, _, _ = history_core(num_pages=400, page_size=4, max_step_tokens=4096, max_running=200)
    client = Client(core)
    spaces = [Namespace(salt=str(number)) for number in range(150)]
    requests = [client.start(client.open([1, 2, 3], space), 1) for space in spaces]

    core.step()

    assert all(map(is_over, requests))


def test_a_large_prompt_that_lacks_pages_is_not_passed_by_small_ones_for_ever() -> None:
    """Each small one would fit beside those that run; the large one would never."""
    core, _, _ = history_core(num_pages=32, page_size=4, max_step_tokens=64, max_running=8)
    client = Client(core)
    small = [client.request(text(20, first=n), 6) for n in range(4)]
    core.step()
    large = client.request(text(120, first=9), 2)

    for number in range(200):
        small.append(client.request(text(20, first=number % 40), 6))
        core.step()
        if output(large):
            break

    assert right_output(text(120, first=9), 2)[: len(output(large))] == output(large) != []


def test_conversations_that_go_on_alike_compute_their_common_words_once() -> None:
    """Each has a partly filled page of its own, behind which it does not see the other's."""
    core, runner, _ = history_core(page_size=4, max_step_tokens=64)
    client = Client(core)
    both = [client.open([n, *text(9)]) for n in (1, 2)]
    twins = [client.fork(both[0]), both[0]]
    for sequence in twins:
        client.start(sequence, 1)
    client.run()
    common, before = text(13, first=5), runner.num_computed

    updates = []
    for number, sequence in enumerate(twins):
        core.append(sequence, [*common, 30 + number])
        updates.append(client.start(sequence, 1))
    client.run()

    last_output, own = 1, 2
    assert last_output + len(common) + own == runner.num_computed - before
    history = [1, *text(9)]
    history += [*right_output(history, 1), *common]
    assert [right_output([*history, 30 + n], 1) for n in range(2)] == list(map(output, updates))


def test_kept_logits_outlive_the_pages() -> None:
    """Short of pages an idle sequence holds none; what is still cached then is not computed."""
    core, runner, kv = history_core(num_pages=12, page_size=4)
    client = Client(core)
    parent = client.open(text(11))
    core.prefill(parent, Updates())
    client.run()
    client.request(text(28, first=9), 1)  # 7 of 12 pages: two more than are free
    client.run()
    assert 3 >= kv.statistics().pages_cached
    before = runner.num_computed

    again = client.start(client.fork(parent), 1)
    client.run()

    assert right_output(text(11), 1) == output(again)
    assert (0, 11) == usage_of(again)
    assert 0 == runner.num_computed - before
