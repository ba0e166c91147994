"""Parts of what the scheduler does can be turned off: it then computes more, and the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from core_client import Client, output, text, usage_of
from history_model import Updates, history_core

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.policy import Eviction


def client_with(policy: SchedulingPolicy, *, num_pages: int = 64) -> tuple[Client, KvCache]:
    core, _, kv = history_core(num_pages=num_pages, max_step_tokens=64, policy=policy)
    return Client(core), kv


@pytest.mark.parametrize(
    ("policy", "prefilled"),
    [
        (SchedulingPolicy(), [22, 0, 4]),
        (SchedulingPolicy(shares_logits=False), [22, 1, 4]),
        # Pages of 4: of 22 tokens 20 are in full pages, of which 17 tokens share 16.
        (SchedulingPolicy(reuse="pages", shares_logits=False), [22, 2, 6]),
        (SchedulingPolicy(reuse="none", shares_logits=False), [22, 22, 22]),
    ],
)
def test_a_prompt_that_came_before_is_used_again_as_far_as_the_policy_says(
    policy: SchedulingPolicy, prefilled: list[int]
) -> None:
    client, _ = client_with(policy)
    prompts = [text(22), text(22), text(18) + text(4, first=5)]

    outputs, found = [], []
    for prompt in prompts:
        updates = client.request(prompt, 2)
        client.run()
        outputs.append(output(updates))
        found.append(usage_of(updates)[0])

    assert prefilled == found
    assert outputs[0] == outputs[1]
    client.core.check_invariants()


@pytest.mark.parametrize(("spares", "prefilled"), [(True, [24, 4]), (False, [24, 24])])
def test_prompts_that_come_together_are_computed_once_or_side_by_side(
    spares: bool, prefilled: list[int]
) -> None:
    client, _ = client_with(SchedulingPolicy(spares_duplicates=spares))

    updates = [client.request(text(20) + text(4, first=n), 1) for n in (6, 9)]
    client.run()

    assert prefilled == [usage_of(one)[0] for one in updates]


def test_a_whole_page_that_ends_a_prompt_is_computed_again_where_pages_are_hashed() -> None:
    client, _ = client_with(SchedulingPolicy(reuse="pages", shares_logits=False))

    first, second = client.request(text(16), 1), client.request(text(16), 1)
    client.run()

    assert [(16, 0), (4, 12)] == [usage_of(one) for one in (first, second)]


@pytest.mark.parametrize(("eviction", "kept_first"), [("next_use", True), ("lru", False)])
def test_what_holders_say_of_the_next_use_counts_only_under_next_use(
    eviction: Eviction, kept_first: bool
) -> None:
    policy = SchedulingPolicy(eviction=eviction)
    client, kv = client_with(policy, num_pages=16)
    sequences = [client.open(text(24, first=n)) for n in (1, 2)]
    for sequence in sequences:
        client.start(sequence, 1)
        client.run()
    for sequence, num_steps in zip(sequences, (1, 9), strict=True):
        client.core.expect_use(sequence, num_steps)

    client.request(text(32, first=20), 1)
    client.run()

    lengths = [kv.match_len(Namespace(), text(24, first=n), 24) for n in (1, 2)]
    assert kept_first == (lengths[0] > lengths[1])


@pytest.mark.parametrize(("spares", "num_together"), [(True, 2), (False, 4)])
def test_who_is_admitted_leaves_room_for_what_will_be_written(
    spares: bool, num_together: int
) -> None:
    """Four prompts of three pages that write two more each, in twelve pages."""
    client, _ = client_with(SchedulingPolicy(spares_output=spares), num_pages=12)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    updates = [Updates() for _ in range(4)]
    for n, one in enumerate(updates):
        sequence = client.open(text(12, first=n + 1))
        client.core.generate(sequence, GenerationRequest(params), one)

    client.core.step()
    num_running = client.core.statistics().scheduler.num_running
    client.run()

    assert num_together == num_running
    assert spares == (client.core.statistics().scheduler.num_preemptions == 0)
    assert [8] * 4 == [len(output(one)) for one in updates]


class _AtOnce:
    """Ends a generation at its first token."""

    def is_met_by(self, token_ids: list[int]) -> bool:
        return True


def test_room_for_what_will_be_written_is_as_much_as_others_wrote() -> None:
    """Prompts of three pages in ten; five more pages are allowed to each, and none are used."""
    client, _ = client_with(SchedulingPolicy(), num_pages=10)
    together: list[int] = []
    for n in range(4):
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        request = GenerationRequest(params, stop=_AtOnce())
        client.core.generate(client.open(text(12, first=n)), request, Updates())
        if n % 2:
            client.core.step()
            together.append(client.core.statistics().scheduler.num_waiting)
            client.run()

    assert [1, 0] == together


def test_an_unknown_word_of_a_policy_is_refused() -> None:
    with pytest.raises(EngineError, match="eviction"):
        SchedulingPolicy(eviction="oldest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
