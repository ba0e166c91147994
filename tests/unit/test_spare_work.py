"""Work that nobody waits for is done in steps in which there is no other, and holds nobody up."""

from __future__ import annotations

from core_client import Client, is_over, output, text, usage_of
from history_model import Updates, history_core, right_output

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sequence import GenerationFinished, SequenceId


def spare(client: Client, tokens: list[int]) -> tuple[SequenceId, Updates]:
    """A sequence whose tokens are computed when there is nothing else to do."""
    sequence, updates = client.open(tokens), Updates()
    client.core.prefill(sequence, updates, is_spare=True)
    return sequence, updates


def test_it_is_computed_where_there_is_nothing_else_and_found_by_who_asks_for_it() -> None:
    client = Client(history_core(num_pages=64, page_size=4, max_step_tokens=8)[0])
    sequence, updates = spare(client, text(40))
    client.run()
    client.core.close(sequence)

    request = client.request([*text(40), 9], 2)
    client.run()

    assert is_over(updates)
    assert (1, 40) == usage_of(request)


def test_it_has_no_part_in_a_step_in_which_others_are_computed() -> None:
    core, runner, _ = history_core(num_pages=64, page_size=4, max_step_tokens=8, max_running=1)
    client = Client(core)
    _, updates = spare(client, text(40, first=5))
    core.step()
    assert 8 == runner.num_computed

    request = client.request(text(6), 4)
    num_steps = 0
    while not is_over(request):
        core.step()
        num_steps += 1

    assert 4 == num_steps
    assert 8 + 6 + 3 == runner.num_computed
    assert right_output(text(6), 4) == output(request)
    client.run()
    assert is_over(updates)
    assert 8 + 6 + 3 + 32 == runner.num_computed


def test_who_needs_the_same_tokens_does_not_wait_for_it() -> None:
    core, runner, _ = history_core(num_pages=64, page_size=4, max_step_tokens=8)
    client = Client(core)
    _, updates = spare(client, text(40))
    core.step()

    request = client.request([*text(40), 9], 1)
    client.run()

    assert is_over(request)
    assert is_over(updates)
    assert (33, 8) == usage_of(request)
    assert 41 == runner.num_computed


def test_nothing_is_evicted_for_it() -> None:
    core, _, kv = history_core(num_pages=16, page_size=4, max_step_tokens=64)
    client = Client(core)
    kept = client.open(text(40))
    client.core.prefill(kept, Updates())
    client.run()
    client.core.close(kept)

    _, updates = spare(client, text(28, first=5))
    client.run()

    (end,) = updates
    assert isinstance(end, GenerationFinished)
    assert 0 == end.usage.prefilled_tokens
    assert 40 == kv.match_len(Namespace(), text(40), 40)


def test_it_can_be_stopped_and_closed_at_any_time() -> None:
    for num_steps in range(7):
        core, _, kv = history_core(num_pages=64, page_size=4, max_step_tokens=8)
        client = Client(core)
        sequence, _ = spare(client, text(40))
        for _ in range(num_steps):
            core.step()
        usage = core.abort(sequence)
        core.close(sequence)

        core.check_invariants()
        assert 0 == kv.statistics().pages_held
        assert (usage is None) == (num_steps > 4)
        assert usage is None or 8 * num_steps == usage.prefilled_tokens
