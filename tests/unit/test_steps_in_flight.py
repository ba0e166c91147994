"""What overlap does to the order of things, to errors, and to sequences that change meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from core_client import Client, is_over, output, text
from history_device import device_core
from history_drafter import HistoryDrafter
from history_model import EOS, VOCAB_SIZE, Updates, right_output

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFailed, GenerationFinished, GenerationRequest
from flowforge.engine.speculation.speculator import Speculator
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.core import EngineCore
    from flowforge.engine.model_interface import LaunchedStep
    from flowforge.engine.sequence import SequenceId
    from flowforge.engine.step_plan import StepPlan

NEVER_ENDS = next(one for n in range(1, 99) if EOS not in right_output(one := text(n), 12))
ENDS = next(one for n in range(1, 99) if len(right_output(one := text(n), 12)) in range(2, 8))


class Anything:
    """A constraint that allows all ids. may_fill: waited for by each mask."""

    is_complete = False
    is_accepting = True

    def __init__(self, may_fill: threading.Event | None = None) -> None:
        self._may_fill = may_fill

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        if self._may_fill is not None:
            assert self._may_fill.wait(60), "the mask is waited for before the launch"
        out.fill(0xFFFFFFFF)

    def limit_to(self, num_tokens: int) -> None:
        del num_tokens

    def advance(self, token_id: int) -> bool:
        del token_id
        return True

    def forced_tokens(self) -> list[int]:
        return []

    def fork(self) -> Self:
        return self


def told(log: list[str]) -> list[str]:
    """What the device was told; not when it did it."""
    return [one for one in log if one in ("launch", "draw", "read")]


def begin(core: EngineCore, sequence: SequenceId, constraint: Anything | None = None) -> Updates:
    updates = Updates()
    params = SamplingParams(max_tokens=12)
    core.generate(sequence, GenerationRequest(params, constraint), updates)
    return updates


def test_a_step_is_launched_before_the_last_one_is_read_and_drawn_after() -> None:
    core, device, _ = device_core()
    client = Client(core)
    updates = client.request(NEVER_ENDS, 4)

    client.run()

    # The last is read alone: its length is known, so no step is launched behind it.
    ahead = ["launch", "read", "draw"] * 3
    assert ["launch", "draw", *ahead, "read"] == told(device.log)
    assert right_output(NEVER_ENDS, 4) == output(updates)
    assert 0 == core.statistics().steps.discarded_rows


def test_without_overlap_each_step_is_read_before_the_next_is_launched() -> None:
    core, device, _ = device_core(overlaps=False)
    client = Client(core)
    client.request(NEVER_ENDS, 4)

    client.run()

    assert ["launch", "draw", "read"] * 4 == told(device.log)


def test_an_end_that_is_found_late_throws_one_row_away_and_its_page() -> None:
    core, _, kv = device_core()
    client = Client(core)
    sequence = client.open(ENDS)
    updates = client.start(sequence, 12)

    client.run()

    said = right_output(ENDS, 12)
    assert said == output(updates)
    assert said[-1] == EOS
    assert 1 == core.statistics().steps.discarded_rows
    # The last token's row is not computed, and no page is there for it.
    assert kv.num_pages_of(len(ENDS) + len(said) - 1) == kv.statistics().pages_held
    core.check_invariants()
    core.close(sequence)
    assert len(ENDS) + len(said) - 1 == core.num_cached(Namespace(), [*ENDS, *said, 1, 2])


def test_a_constraint_has_each_step_read_before_the_next() -> None:
    core, device, _ = device_core()
    client = Client(core)
    begin(core, client.open(NEVER_ENDS), Anything())

    client.run()

    assert ["launch", "draw", "read"] * 12 == told(device.log)


def test_masks_are_filled_while_the_forward_pass_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, device, _ = device_core()
    client = Client(core)
    is_launched = threading.Event()
    launch = device.launch

    def launch_and_tell(plan: StepPlan) -> LaunchedStep:
        launched = launch(plan)
        is_launched.set()
        return launched

    monkeypatch.setattr(device, "launch", launch_and_tell)
    updates = begin(core, client.open(NEVER_ENDS), Anything(is_launched))

    client.run()

    assert right_output(NEVER_ENDS, 12) == output(updates)
    assert "launch" == device.log[0]
    assert 12 == core.statistics().masks.num_masks


def test_guesses_need_the_tokens_before_them_and_pauses_do_not() -> None:
    wrong = Speculator(HistoryDrafter(share_right=0.0))
    core, _, _ = device_core(speculator=wrong)
    client = Client(core)
    updates = client.request(NEVER_ENDS, 12)

    client.run()

    assert right_output(NEVER_ENDS, 12) == output(updates)
    # The first guesses are wrong; then there is a pause of four steps.
    assert 0 < core.statistics().steps.num_ahead < 12
    assert 0 < core.statistics().speculation.drafted


def test_an_end_behind_guesses_is_allowed_as_soon_as_there_are_enough_tokens() -> None:
    prompt = next(one for n in range(1, 99) if len(right_output(one := text(n), 12)) in (3, 4))
    said = right_output(prompt, 12)
    core, _, _ = device_core(speculator=Speculator(HistoryDrafter(share_right=1.0)))
    client, updates = Client(core), Updates()
    params = SamplingParams(max_tokens=12, min_tokens=len(said) - 1)
    core.generate(client.open(prompt), GenerationRequest(params), updates)

    client.run()

    assert said == output(updates)
    assert core.statistics().num_steps < len(said), "the end was not guessed"


def test_a_step_with_guesses_is_read_first_even_if_none_will_be_asked_for() -> None:
    """Others come into that step, and then there is no room for guesses any more."""
    guesses = Speculator(HistoryDrafter(share_right=1.0), most_rows=3)
    core, _, _ = device_core(speculator=guesses)
    client = Client(core)
    prompts = [NEVER_ENDS, *(text(4, first=first) for first in (20, 30, 40))]
    updates = [client.request(prompts[0], 12)]
    core.step()
    updates += [client.request(prompt, 12) for prompt in prompts[1:]]

    client.run()

    assert [right_output(prompt, 12) for prompt in prompts] == [output(one) for one in updates]
    assert core.statistics().speculation.accepted > 0


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_a_fork_of_a_sequence_in_flight_goes_on_from_what_was_told(num_steps: int) -> None:
    core, _, _ = device_core(seed=num_steps)
    client = Client(core)
    parent = client.open(NEVER_ENDS)
    updates = client.start(parent, 12)
    for _ in range(num_steps):
        core.step()
    so_far = output(updates)

    child = client.fork(parent)
    of_child = client.start(child, 12 - len(so_far))
    client.run()

    assert right_output(NEVER_ENDS, 12) == output(updates) == [*so_far, *output(of_child)]


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_an_aborted_sequence_goes_on_where_it_was_told_to_be(num_steps: int) -> None:
    core, _, kv = device_core(seed=num_steps)
    client = Client(core)
    sequence = client.open(NEVER_ENDS)
    updates = client.start(sequence, 12)
    for _ in range(num_steps):
        core.step()

    core.abort(sequence)
    so_far = output(updates)
    again = client.start(sequence, 12 - len(so_far))
    client.run()

    assert right_output(NEVER_ENDS, 12) == [*so_far, *output(again)]
    assert so_far == output(updates), "a token came after the end"
    core.close(sequence)
    core.check_invariants()
    assert 0 == kv.statistics().pages_held


def test_a_preempted_sequence_draws_the_token_again_that_was_in_flight() -> None:
    core, _, _ = device_core()
    client = Client(core)
    sequence = client.open(NEVER_ENDS)
    updates = Updates()
    params = SamplingParams(max_tokens=12, temperature=5.0, seed=3, ignore_eos=True)
    core.generate(sequence, GenerationRequest(params), updates)
    expected = Updates()
    other, _, _ = device_core(overlaps=False)
    alone = Client(other)
    other.generate(alone.open(NEVER_ENDS), GenerationRequest(params), expected)
    alone.run()
    for _ in range(3):
        core.step()

    core.preempt(sequence)
    client.run()

    assert output(expected) == output(updates)
    assert 1 == core.statistics().scheduler.num_preemptions


def test_a_launch_that_fails_ends_its_sequences_behind_the_tokens_of_the_last_step() -> None:
    core, device, kv = device_core()
    client = Client(core)
    sequence = client.open(NEVER_ENDS)
    updates = client.start(sequence, 12)
    for _ in range(3):
        core.step()
    assert 2 == len(output(updates))

    device.error = RuntimeError("no room")
    core.step()

    assert 3 == len(output(updates)), "what was drawn before is lost"
    assert right_output(NEVER_ENDS, 3) == output(updates)
    end = updates[-1]
    assert isinstance(end, GenerationFailed) and isinstance(end.error, EngineError)
    assert "EN220" == end.error.code
    assert not core.has_work
    device.error = None
    again = client.start(sequence, 9)
    client.run()
    assert right_output(NEVER_ENDS, 12) == [*output(updates), *output(again)]
    core.close(sequence)
    core.check_invariants()
    assert 0 == kv.statistics().pages_held


def test_a_step_that_fails_late_ends_the_sequences_of_the_step_behind_it_too() -> None:
    core, device, kv = device_core(max_running=2)
    client = Client(core)
    first = client.open(NEVER_ENDS)
    updates = client.start(first, 12)
    for _ in range(3):
        core.step()
    second = client.open(text(5, first=30))
    of_second = client.start(second, 12)
    third = client.open(text(5, first=40))
    of_third = client.start(third, 2)

    # The first is in both steps, the second in the one behind it, the third waits.
    device.read_error = RuntimeError("the device is gone")
    core.step()
    device.read_error = None
    before = output(updates)
    client.run()

    for failed in (updates, of_second):
        end = failed[-1]
        assert isinstance(end, GenerationFailed) and isinstance(end.error, EngineError)
        assert "EN220" == end.error.code
    assert isinstance(of_third[-1], GenerationFinished)
    assert right_output(text(5, first=40), 2) == output(of_third)
    # Nobody reads what they may have written.
    again = client.start(first, 12 - len(before))
    client.run()
    assert right_output(NEVER_ENDS, 12) == [*before, *output(again)]
    for sequence in (first, second, third):
        core.close(sequence)
    core.check_invariants()
    assert 0 == kv.statistics().pages_held
    kv.drop_cached()
    assert kv.num_pages == kv.num_free


def test_pages_that_a_failed_step_was_to_bring_back_are_trusted_by_nobody() -> None:
    core, device, kv = device_core(num_pages=6, num_host_slots=6)
    client = Client(core)
    prompt, others = text(14), text(20, first=30)
    first = client.open(prompt)
    client.start(first, 2)
    client.run()
    core.close(first)
    other = client.open(others)
    client.start(other, 2)
    client.run()
    core.close(other)
    assert kv.statistics().host.pages_used > 0
    again = client.open(prompt)
    client.start(again, 3)
    core.step()
    assert kv.statistics().host.restored_pages > 0

    child = client.fork(again)
    device.read_error = RuntimeError("the device is gone")
    core.step()
    device.read_error = None

    assert 0 == core.num_cached(Namespace(), prompt)
    updates = client.start(child, 2)
    client.run()
    assert right_output(prompt, 2) == output(updates)
    core.check_invariants()


def test_closing_the_engine_tells_who_waits_for_a_step_in_flight() -> None:
    core, _, kv = device_core()
    client = Client(core)
    updates = client.request(NEVER_ENDS, 12)
    for _ in range(3):
        core.step()

    core.close_all(EngineError("EN206", "the engine was closed"))

    assert is_over(updates)
    assert not core.has_work
    assert 0 == kv.statistics().pages_held


def test_a_row_without_an_allowed_token_fails_its_own_sequence_when_it_is_read() -> None:
    core, _, _ = device_core()
    client = Client(core)
    other = client.request(NEVER_ENDS, 6)
    updates = Updates()
    banned = dict.fromkeys(range(VOCAB_SIZE), -100.0)
    request = GenerationRequest(SamplingParams(max_tokens=6, logit_bias=banned))
    core.generate(client.open(text(4)), request, updates)

    client.run()

    end = updates[-1]
    assert isinstance(end, GenerationFailed) and isinstance(end.error, EngineError)
    assert "EN212" == end.error.code
    assert right_output(NEVER_ENDS, 6) == output(other)


def test_a_bias_for_no_token_fails_its_own_sequence() -> None:
    core, _, _ = device_core()
    client = Client(core)
    other = client.request(NEVER_ENDS, 6)
    updates = Updates()
    request = GenerationRequest(SamplingParams(max_tokens=6, logit_bias={VOCAB_SIZE: 1.0}))
    core.generate(client.open(text(4)), request, updates)

    client.run()

    end = updates[-1]
    assert isinstance(end, GenerationFailed) and isinstance(end.error, EngineError)
    assert "EN210" == end.error.code
    assert right_output(NEVER_ENDS, 6) == output(other)
