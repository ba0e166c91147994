"""Scheduling and caching bugs that other engines had; KV-… are rows of cases/bank.jsonl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from core_client import Client, output, text, usage_of
from history_model import Updates, history_core, right_output

from flowforge.engine import prompt_logits
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFailed,
    GenerationFinished,
    GenerationRequest,
    SequenceId,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.sequence import Update


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 16, 17])
def test_an_equal_prompt_computes_nothing_while_its_logits_are_kept(prompt_len: int) -> None:
    """KV-001, KV-003. Other engines compute a token or a page more, for the logits."""
    core, _, _ = history_core(page_size=4)
    client = Client(core)

    first = client.request(text(prompt_len), 6)
    client.run()
    second = client.request(text(prompt_len), 6)
    client.run()

    assert right_output(text(prompt_len), 6) == output(first) == output(second)
    assert (0, prompt_len) == usage_of(second)


@pytest.mark.parametrize("prompt_len", [1, 4, 5, 16])
def test_an_equal_prompt_whose_logits_are_gone_computes_one_token(
    prompt_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV-001: never nothing, for there would be no logits."""
    monkeypatch.setattr(prompt_logits, "_LEAST_BYTES", 1)
    core, _, _ = history_core(page_size=4)
    client = Client(core)
    for prompt in (text(prompt_len), [45, *text(3)]):
        client.request(prompt, 6)
        client.run()

    again = client.request(text(prompt_len), 6)
    client.run()

    assert right_output(text(prompt_len), 6) == output(again)
    assert (1, prompt_len - 1) == usage_of(again)


def test_equal_prompts_at_once_are_computed_once_to_the_last_token() -> None:
    core, runner, _ = history_core(page_size=4)
    client = Client(core)

    samples = [client.request(text(11), 1) for _ in range(5)]
    client.run()

    assert 11 == runner.num_computed
    assert [right_output(text(11), 1)] * 5 == list(map(output, samples))


def test_branches_of_a_fork_compute_their_common_words_once() -> None:
    core, runner, _ = history_core(page_size=4, max_step_tokens=64)
    client = Client(core)
    parent = client.open(text(10))
    client.start(parent, 3)
    client.run()
    generated = runner.num_computed - 10
    before = runner.num_computed

    common = text(9, first=2)  # ends inside a page
    branches = [client.fork(parent) for _ in range(3)]
    updates = []
    for number, branch in enumerate(branches):
        core.append(branch, [*common, 40 + number, 7])
        updates.append(client.start(branch, 1))
    client.run()

    unwritten = 3 - generated
    assert unwritten + len(common) + 3 * 2 == runner.num_computed - before
    for number in range(3):
        prompt = [*text(10), *right_output(text(10), 3), *common, 40 + number, 7]
        assert right_output(prompt, 1) == output(updates[number])


def test_two_equal_prompts_in_one_batch_are_computed_once_and_survive_eviction() -> None:
    """KV-029, and the use after free of other small engines."""
    core, runner, kv = history_core(num_pages=16, page_size=4, max_step_tokens=64)
    client = Client(core)

    twins = [client.request(text(18), 5) for _ in range(2)]
    client.run()
    assert 18 <= runner.num_computed <= 18 + 2 * 5
    pressure = [client.request(text(30, first=n), 8) for n in (2, 3, 4)]
    client.run()

    assert right_output(text(18), 5) == output(twins[0]) == output(twins[1])
    assert [right_output(text(30, first=n), 8) for n in (2, 3, 4)] == list(map(output, pressure))
    assert kv.statistics().evicted_pages > 0


def test_logits_kept_by_a_prefill_are_sampled_by_forks_without_computing_again() -> None:
    core, runner, _ = history_core(page_size=4)
    client = Client(core)
    parent = client.open(text(11))
    core.prefill(parent, Updates())
    client.run()
    assert runner.num_computed == 11

    samples = [client.start(client.fork(parent), 1) for _ in range(3)]
    client.run()

    assert runner.num_computed == 11
    assert [right_output(text(11), 1)] * 3 == list(map(output, samples))


def test_generated_tokens_are_found_again_to_the_token() -> None:
    """KV-012: 149 of 150 tokens have KV, and all of them are matched."""
    core, _, _ = history_core(num_pages=64, page_size=16, max_step_tokens=256)
    client = Client(core)
    first = client.open(text(100))
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    updates = Updates()
    core.generate(first, GenerationRequest(params), updates)
    client.run()
    core.close(first)

    again = client.request([*text(100), *output(updates), *text(50, first=5)], 1)
    client.run()

    assert (51, 149) == usage_of(again)


def test_a_request_that_lacks_pages_again_and_again_leaks_none() -> None:
    """KV-008: matches two pages, needs five of four; refused with numbers, a hundred times."""
    core, _, kv = history_core(num_pages=4, page_size=4)
    client = Client(core)
    client.request(text(8), 1)
    client.run()

    for _ in range(100):
        sequence = client.open([*text(8), *text(10, first=3)])
        with pytest.raises(EngineError, match="18 tokens cannot fit into a pool of 16") as caught:
            client.start(sequence, None)
        assert caught.value.code == "EN202"
        core.close(sequence)

    core.check_invariants()
    core.close(SequenceId(1))
    assert (0, 4) == (kv.statistics().pages_held, kv.num_available)


def test_two_long_prompts_do_not_preempt_each_other_chunk_by_chunk() -> None:
    """KV-021: a pool of 1,024 tokens, two prompts of 700, chunks of 128."""
    core, runner, _ = history_core(num_pages=64, page_size=16, max_step_tokens=128)
    client = Client(core)

    both = [client.request(text(700, first=n), 4) for n in (1, 2)]
    client.run()

    assert [right_output(text(700, first=n), 4) for n in (1, 2)] == list(map(output, both))
    assert runner.num_computed <= 2 * (700 + 700)
    assert core.statistics().scheduler.num_preemptions <= 4


@pytest.mark.parametrize(("prompt_len", "max_tokens"), [(40, 8), (40, 9)])
def test_a_request_that_fills_the_pool_to_its_last_row_ends(
    prompt_len: int, max_tokens: int
) -> None:
    """KV-023: the last token sampled needs no row, so 40 + 9 fit into 48 rows."""
    core, _, _ = history_core(num_pages=12, page_size=4)
    client = Client(core)

    updates = client.request(text(prompt_len), max_tokens)
    client.run()

    assert right_output(text(prompt_len), max_tokens) == output(updates)


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    core, _, _ = history_core(num_pages=12, page_size=4)

    with pytest.raises(EngineError, match=r"40 tokens and up to 10 new ones .* pool of 48 tokens"):
        Client(core).request(text(40), 10)


def test_without_max_tokens_a_generation_ends_where_the_pool_does() -> None:
    """The second half of TK-037."""
    core, _, _ = history_core(num_pages=12, page_size=4)
    client = Client(core)
    sequence = client.open(text(40))
    updates = Updates()

    core.generate(sequence, GenerationRequest(SamplingParams(ignore_eos=True)), updates)
    client.run()

    end = updates[-1]
    assert isinstance(end, GenerationFinished)
    assert ("length", 9) == (end.reason, len(output(updates)))


def test_two_requests_that_fit_only_one_by_one_both_end() -> None:
    """KV-024: seven pages, one needs five, the other four; each step makes a token."""
    core, runner, _ = history_core(num_pages=7, page_size=4)
    client = Client(core)
    both = [client.request(text(n), 4) for n in (16, 12)]

    num_steps = client.run(most_steps=50)

    assert num_steps == len(runner.plans), "a step did nothing while requests waited"
    assert [right_output(text(n), 4) for n in (16, 12)] == list(map(output, both))


def test_a_preempted_sequence_resumes_with_every_token_once() -> None:
    """KV-019: the pool fits one and a half requests."""
    policy = SchedulingPolicy(spares_output=False)
    core, _, _ = history_core(num_pages=9, page_size=4, policy=policy)
    client = Client(core)
    params = SamplingParams(max_tokens=14, ignore_eos=True)
    both = [Updates(), Updates()]
    for n in (1, 2):
        core.generate(client.open(text(10, first=n)), GenerationRequest(params), both[n - 1])

    client.run()

    assert core.statistics().scheduler.num_preemptions > 0
    for n in (1, 2):
        solo, _, _ = history_core()
        updates = Updates()
        solo.generate(Client(solo).open(text(10, first=n)), GenerationRequest(params), updates)
        Client(solo).run()
        assert output(updates) == output(both[n - 1])


def test_a_long_prompt_is_not_passed_over_by_a_stream_of_short_ones() -> None:
    """KV-025."""
    core, _, _ = history_core(num_pages=64, page_size=16, max_step_tokens=64)
    client = Client(core)
    shorts = [client.request(text(20, first=n), 30) for n in range(2, 8)]
    long = client.request(text(900), 4)
    started_after = 0

    while not output(long):
        shorts.append(client.request(text(20, first=started_after % 40), 2))
        started_after += 1
        core.step()
        assert started_after < 100, "the long prompt starves"

    client.run()
    assert right_output(text(900), 4) == output(long)


def test_running_streams_get_a_token_in_every_step_of_a_long_prefill() -> None:
    """KV-026."""
    core, runner, _ = history_core(num_pages=256, page_size=16, max_step_tokens=32, max_running=8)
    client = Client(core)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    streams = [Updates() for _ in range(4)]
    for n, updates in enumerate(streams):
        core.generate(client.open(text(10, first=n + 2)), GenerationRequest(params), updates)
    while not all(map(output, streams)):
        core.step()

    client.request(text(700), 1)
    for _ in range(20):
        before = [len(output(updates)) for updates in streams]
        core.step()
        assert [n + 1 for n in before] == [len(output(updates)) for updates in streams]
    assert any(len(plan.chunks) == 5 for plan in runner.plans)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace(salt="12345"), Namespace(adapter="1", salt="2345")),
        (Namespace(salt="lora"), Namespace(adapter="lora")),
        (Namespace(model_revision="a"), Namespace(model_revision="b")),
    ],
)
def test_namespaces_never_share_a_page(one: Namespace, other: Namespace) -> None:
    """KV-030, KV-032."""
    core, _, _ = history_core()
    client = Client(core)
    client.start(client.open(text(20), one), 2)
    client.run()

    again = client.start(client.open(text(20), other), 2)
    client.run()

    assert (20, 0) == usage_of(again)


def test_a_fork_in_the_middle_of_a_generation_goes_on_by_itself() -> None:
    """KV-017: the dropped branch gives its private pages back, the others read their own rows."""
    core, _, kv = history_core(page_size=4)
    client = Client(core)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    parent, updates = client.open(text(6)), Updates()
    core.generate(parent, GenerationRequest(params), updates)
    for _ in range(5):
        core.step()
    history = [*text(6), *output(updates)]
    dropped, kept = client.fork(parent), client.fork(parent)
    core.append(dropped, [9, 9])
    core.append(kept, [8])
    client.start(dropped, 10)
    branch = client.start(kept, 4)
    core.step()

    core.close(dropped)
    client.run()

    assert right_output([*history, 8], 4) == output(branch)
    core.close(parent)
    core.close(kept)
    assert kv.statistics().pages_held == 0


def test_an_error_in_the_forward_pass_fails_its_requests_and_no_later_one() -> None:
    core, runner, _ = history_core()
    client = Client(core)
    failed = client.request(text(10), 3)
    runner.error = RuntimeError("out of memory")

    core.step()
    runner.error = None
    after = client.request(text(10), 3)
    client.run()

    end = failed[-1]
    assert isinstance(end, GenerationFailed)
    assert isinstance(end.error.__cause__, RuntimeError)
    assert "EN220" in str(end.error)
    assert right_output(text(10), 3) == output(after)
    core.check_invariants()


def test_closing_everything_ends_generations_with_the_reason() -> None:
    core, _, kv = history_core()
    updates = Client(core).request(text(10), 30)
    core.step()

    core.close_all(EngineError("EN206", "the engine was closed"))

    end = updates[-1]
    assert isinstance(end, GenerationFailed)
    assert "EN206" in str(end.error)
    assert kv.statistics().pages_held == 0


def test_the_stand_in_notices_a_row_of_another_text() -> None:
    """All that is above rests on this."""
    core, runner, _ = history_core(page_size=4)
    updates = Client(core).request(text(10), 5)
    core.step()
    runner.rows.clear()

    core.step()

    end = updates[-1]
    assert isinstance(end, GenerationFailed)
    assert isinstance(end.error.__cause__, KeyError)


def test_scores_are_those_of_the_model_whatever_is_cached() -> None:
    """TK-054: as many entries as tokens, equal with and without a cached prefix."""
    prompt, given = text(33), [7, 8, 9]

    def scores(*, cached: int) -> list[float]:
        core, _, _ = history_core(page_size=4, max_step_tokens=5)
        client = Client(core)
        if cached:
            client.request([*prompt, *given][:cached], 1)
            client.run()
        updates = Updates()
        core.score(client.open(prompt[:1]), [*prompt[1:], *given], updates)
        client.run()
        end = updates[-1]
        assert isinstance(end, GenerationFinished)
        return [one.logprob for one in end.scored]

    cold = scores(cached=0)

    assert 32 + 3 == len(cold)
    assert all(cold == scores(cached=cached) for cached in (4, 17, 32, 36))


def test_continuations_are_scored_from_kept_logits_without_computing_the_prefix_again() -> None:
    core, runner, _ = history_core(page_size=4)
    client = Client(core)
    parent = client.open(text(11))
    core.prefill(parent, Updates())
    client.run()

    updates = [Updates() for _ in range(3)]
    for number, sink in enumerate(updates):
        core.score(client.fork(parent), [20 + number, 5], sink)
    client.run()

    assert 11 + 3 * 2 == runner.num_computed
    ends = [sink[-1] for sink in updates]
    assert [2, 2, 2] == [len(end.scored) for end in ends if isinstance(end, GenerationFinished)]


def test_a_constraint_that_raises_ends_its_own_generation_only() -> None:
    class Broken:
        is_complete = False
        is_accepting = False

        def fill_mask(self, out: object) -> None:
            raise ZeroDivisionError("a defect in the constraint")

        def limit_to(self, num_tokens: int) -> None:
            pass

        def advance(self, token_id: int) -> bool:
            raise AssertionError("never reached")

        def forced_tokens(self) -> list[int]:
            return []

        def fork(self) -> Broken:
            return self

    core, _, kv = history_core()
    client = Client(core)
    failed = Updates()
    params = SamplingParams(max_tokens=4)
    core.generate(client.open(text(9)), GenerationRequest(params, constraint=Broken()), failed)
    healthy = client.request(text(9, first=3), 4)

    client.run()

    end = failed[-1]
    assert isinstance(end, GenerationFailed)
    assert isinstance(end.error.__cause__, ZeroDivisionError)
    assert right_output(text(9, first=3), 4) == output(healthy)
    assert kv.statistics().pages_held > 0


def test_a_higher_priority_is_admitted_before_older_requests() -> None:
    core, _, _ = history_core(max_running=1)
    client = Client(core)
    order: list[int] = []

    class Noting(Updates):
        def __init__(self, priority: int) -> None:
            super().__init__()
            self._priority = priority

        def put(self, update: Update) -> None:
            if isinstance(update, GenerationFinished):
                order.append(self._priority)

    for priority in (0, 0, 5, 1):
        request = GenerationRequest(SamplingParams(max_tokens=2), priority=priority)
        core.generate(client.open(text(6, first=priority)), request, Noting(priority))
    client.run()

    assert [5, 1, 0, 0] == order


def test_free_pages_are_told_to_who_debugs() -> None:
    freed: list[int] = []
    kv = KvCache(4, 4, freed.extend)
    path = kv.open(Namespace())
    kv.reserve(path, 12)
    kv.commit(path, text(5))

    kv.release(path)
    reserved_only = list(freed)
    kv.drop_cached()

    assert 1 == len(reserved_only)
    assert {0, 1, 2} == set(freed)
