"""Steps that are launched before the last one is read change nothing but when tokens come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from core_client import Client, is_over, output
from history_device import device_core
from history_drafter import HistoryDrafter
from history_model import EOS, VOCAB_SIZE, Updates
from hypothesis import event, given, settings
from hypothesis import strategies as st
from random_operations import Driver

from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFailed,
    GenerationFinished,
    GenerationRequest,
    TokensArrived,
)
from flowforge.engine.speculation.speculator import Speculator
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.core import EngineCore
    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.kv.kv_statistics import KvStatistics
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.sequence import GenerationUsage, SequenceId


class OddThenEven:
    """A constraint: ids are odd and even in turns, every seventh is refused; a 9 forces a 10."""

    def __init__(self, num_said: int = 0, last: int = 0, refused: int | None = None) -> None:
        self._num_said, self._last, self._refused = num_said, last, refused

    @property
    def is_complete(self) -> bool:
        return False

    @property
    def is_accepting(self) -> bool:
        return self._num_said > 3

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        out.fill(0)
        for token in range(1, VOCAB_SIZE):
            if token % 2 != self._num_said % 2 and token != self._refused:
                out[token // 32] |= 1 << token % 32
        if self.is_accepting:
            out[0] |= 1 << EOS

    def limit_to(self, num_tokens: int) -> None:
        del num_tokens

    def advance(self, token_id: int) -> bool:
        if token_id % 7 == 0 and self._refused is None:
            self._refused = token_id
            return False
        self._num_said, self._last, self._refused = self._num_said + 1, token_id, None
        return True

    def forced_tokens(self) -> list[int]:
        return [10] if self._last == 9 else []

    def fork(self) -> Self:
        return type(self)(self._num_said, self._last, self._refused)


class EndsAt:
    """A stop condition: an id of the output."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def is_met_by(self, token_ids: list[int]) -> bool:
        return self._token_id in token_ids


@dataclass(frozen=True)
class Call:
    """A generation. at: the step before which it comes. parent: whose fork it is, by number."""

    at: int
    prompt: tuple[int, ...]
    parent: int | None
    params: SamplingParams
    is_constrained: bool
    stop_id: int | None
    then: tuple[int, ...]


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 1.0, 3.0])),
        top_k=draw(st.sampled_from([0, 5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        logit_bias=draw(st.sampled_from([{}, {}, {3: 1.0, 4: -100.0}])),
        seed=draw(st.integers(0, 5)),
        min_tokens=draw(st.integers(0, 3)),
        max_tokens=draw(st.integers(3, 14)),
        ignore_eos=draw(st.booleans()),
        num_logprobs=draw(st.sampled_from([None, None, 0, 2])),
    )


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    prompts = st.lists(st.integers(1, 2), min_size=1, max_size=18).map(tuple)
    return [
        Call(
            at=draw(st.integers(0, 12)),
            prompt=draw(prompts),
            parent=draw(st.none() | st.integers(0, number - 1)) if number else None,
            params=draw(params()),
            is_constrained=draw(st.sampled_from([False, False, False, True])),
            stop_id=draw(st.none() | st.integers(1, 8)),
            then=draw(st.just(()) | prompts),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


@dataclass(frozen=True)
class Said:
    """What came of a call. turns: of its generation, and of the one that goes on from it."""

    turns: list[tuple[list[int], list[TokenLogprobs], str, GenerationUsage]]


@dataclass(frozen=True)
class Outcome:
    said: list[Said]
    generated_tokens: int
    prefilled_tokens: int
    at_rest: KvStatistics
    num_free_after: int


def run(
    made: list[Call], *, overlaps: bool, num_pages: int, seed: int, guesses: bool = False
) -> Outcome:
    speculator = Speculator(HistoryDrafter(seed)) if guesses else None
    core, _, kv = device_core(
        num_pages=num_pages, overlaps=overlaps, seed=seed, speculator=speculator
    )
    client = Client(core)
    prompts = [client.open([*call.prompt]) for call in made]
    for sequence in prompts:
        core.prefill(sequence, Updates())
    client.run()
    waiting = dict(enumerate(made))
    begun: dict[int, tuple[SequenceId, list[Updates]]] = {}
    num_steps = 0
    while waiting or core.has_work or any(goes_on(made[idx], begun[idx][1]) for idx in begun):
        for idx in [idx for idx, call in waiting.items() if call.at <= num_steps]:
            call = waiting.pop(idx)
            parent = prompts[idx if call.parent is None else call.parent]
            sequence = client.fork(parent)
            begun[idx] = (sequence, [generate(core, sequence, call)])
        for idx, (sequence, turns) in begun.items():
            if goes_on(made[idx], turns):
                core.append(sequence, made[idx].then)
                turns.append(generate(core, sequence, made[idx]))
        core.step()
        core.check_invariants()
        num_steps += 1
    if core.statistics().steps.num_ahead:
        event("ran ahead")
    if core.statistics().steps.discarded_rows:
        event("threw rows away")
    return Outcome(
        [Said([told(updates) for updates in begun[idx][1]]) for idx in range(len(made))],
        core.statistics().generated_tokens,
        core.statistics().prefilled_tokens,
        # A row that is thrown away may have had a page of its own for a step.
        replace(kv.statistics(), pages_peak_held=0),
        close_all(core, kv, [*prompts, *(sequence for sequence, _ in begun.values())]),
    )


def goes_on(call: Call, turns: list[Updates]) -> bool:
    return bool(call.then) and len(turns) == 1 and is_over(turns[0])


def generate(core: EngineCore, sequence: SequenceId, call: Call) -> Updates:
    updates = Updates()
    request = GenerationRequest(
        call.params,
        OddThenEven() if call.is_constrained else None,
        None if call.stop_id is None else EndsAt(call.stop_id),
    )
    core.generate(sequence, request, updates)
    return updates


def told(updates: Updates) -> tuple[list[int], list[TokenLogprobs], str, GenerationUsage]:
    logprobs = [one for each in updates if isinstance(each, TokensArrived) for one in each.logprobs]
    end = updates[-1]
    assert isinstance(end, GenerationFinished | GenerationFailed) and end.usage is not None
    why = end.reason if isinstance(end, GenerationFinished) else str(end.error)
    return output(updates), logprobs, why, replace(end.usage, ttft_s=0.0, total_s=0.0)


def close_all(core: EngineCore, kv: KvCache, sequences: list[SequenceId]) -> int:
    for sequence in sequences:
        core.close(sequence)
    core.check_invariants()
    assert kv.statistics().pages_held == 0, "pages are held after the end"
    # Ends the thread that fills masks.
    core.close_all(EngineError("EN206", "the engine was closed"))
    kv.drop_cached()
    return kv.num_free


@settings(max_examples=70)
@given(calls(), st.integers(0, 3))
def test_with_room_for_all_even_the_books_are_the_same(made: list[Call], seed: int) -> None:
    expected = run(made, overlaps=False, num_pages=200, seed=seed)

    found = run(made, overlaps=True, num_pages=200, seed=seed)

    assert expected == found


@settings(max_examples=50)
@given(calls(), st.integers(0, 3), st.booleans())
def test_under_pressure_and_with_guesses_texts_are_the_same_and_nothing_is_held(
    made: list[Call], seed: int, guesses: bool
) -> None:
    expected = run(made, overlaps=False, num_pages=17, seed=seed)

    found = run(made, overlaps=True, num_pages=17, seed=seed, guesses=guesses)

    assert [[turn[:3] for turn in one.turns] for one in expected.said] == [
        [turn[:3] for turn in one.turns] for one in found.said
    ]
    assert expected.num_free_after == found.num_free_after == 17


@pytest.mark.parametrize("seed", range(4))
def test_no_operation_shows_in_what_a_sequence_reads_with_overlap(seed: int) -> None:
    driver = Driver(seed, overlaps=True)

    driver.run(3_000)

    found = driver.core.statistics()
    assert found.steps.num_ahead > 20, "no step was launched ahead"
    assert found.steps.discarded_rows > 0
    assert found.scheduler.num_preemptions > 0
