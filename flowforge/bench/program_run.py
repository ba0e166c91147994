"""A workload on an engine core, step by step on one thread: counts are the same every time.

The run has a clock of its own. A step takes as long as it took, or, for counting, always the same;
when all programs wait for tools the clock goes on to the first that is back. So waits cost no time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from flowforge.bench.program_calls import Segment, Texts, count_tokens
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFailed,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)
from flowforge.errors import InternalError

if TYPE_CHECKING:
    from flowforge.bench.program_calls import Call, Ids, TokenCounts, Workload
    from flowforge.engine.core import EngineCore
    from flowforge.engine.sequence import Update
    from flowforge.engine.statistics import EngineStatistics

_NAMESPACE = Namespace()
# Ids below are left to control tokens.
_FIRST_ID = 16


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Of one call, in seconds of the run's clock. start: its first step may be later."""

    start_s: float
    first_token_s: float
    end_s: float
    num_output: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """num_rows: tokens computed. seconds: of the whole step."""

    num_rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What a run came to.

    makespan_s: by the run's clock, waits for tools included. least_pages: that hold the rows which
    the greatest step read. order: indices of calls, as they were admitted. steps: every step.
    """

    texts: Texts
    counts: TokenCounts
    statistics: EngineStatistics
    times: tuple[CallTimes, ...]
    order: tuple[int, ...]
    steps: tuple[StepFigures, ...]
    makespan_s: float
    cpu_s: float
    wall_s: float
    least_pages: int


def random_texts(vocab_size: int, seed: int = 0) -> Texts:
    """Segments of random ids of a vocabulary; a segment has the same whenever it is asked for."""
    drawn: dict[Segment, Ids] = {}

    def draw(segment: Segment) -> Ids:
        if segment not in drawn:
            random = Random(f"{seed} {segment}")
            ids = (random.randrange(_FIRST_ID, vocab_size) for _ in range(segment.num_tokens))
            drawn[segment] = tuple(ids)
        return drawn[segment]

    return Texts(draw)


def run_programs(
    workload: Workload, core: EngineCore, *, tells_next_use: bool, step_s: float | None = None
) -> ProgramRun:
    """Run a workload to its end on a fresh core.

    tells_next_use: hold what is known of the prompts of coming calls and say in how many steps they
    come. step_s: seconds that a step takes by the run's clock; None for as long as it took.
    Raises what the engine fails with.
    """
    return _Runner(workload, core, tells_next_use=tells_next_use, step_s=step_s).run()


@dataclass(slots=True)
class _Sink:
    """What arrives of one call."""

    arrived: list[int] = field(default_factory=list[int])
    end: Update | None = None

    def put(self, update: Update) -> None:
        if isinstance(update, TokensArrived):
            self.arrived += update.token_ids
        else:
            self.end = update


class _Runner:
    def __init__(
        self, workload: Workload, core: EngineCore, *, tells_next_use: bool, step_s: float | None
    ) -> None:
        self._calls = workload.calls
        self._workload = workload
        self._core = core
        self._tells_next_use = tells_next_use
        self._step_s = step_s
        self._texts = random_texts(core.model.vocab_size)
        self._now_s = 0.0
        self._due: list[tuple[float, int]] = []
        self._num_awaited = [len(call.needs) for call in self._calls]
        self._dependents: list[list[int]] = [[] for _ in self._calls]
        for call in self._calls:
            for needed in call.needs:
                self._dependents[needed].append(call.idx)
        self._opened: dict[int, int] = {}
        self._sinks: dict[int, _Sink] = {}
        self._start_s: dict[int, float] = {}
        self._first_s: dict[int, float] = {}
        self._times: dict[int, CallTimes] = {}
        self._order: list[int] = []
        self._steps: list[StepFigures] = []
        self._most_rows = 0

    def run(self) -> ProgramRun:
        started_at, cpu_at = time.monotonic(), time.process_time()
        for call in self._calls:
            if not call.needs:
                heappush(self._due, (call.arrival_s, call.idx))
        if self._tells_next_use:
            self._hold_coming([call.idx for call in self._calls])
        while len(self._times) < len(self._calls):
            while self._due and self._due[0][0] <= self._now_s:
                self._start(self._calls[heappop(self._due)[1]])
            if self._core.has_work:
                self._step()
            elif self._due:
                self._now_s = max(self._now_s, self._due[0][0])
            else:
                raise InternalError("IN540", "a workload waits for a call that never comes")
        self._core.check_invariants()
        times = tuple(self._times[idx] for idx in range(len(self._calls)))
        return ProgramRun(
            self._texts,
            count_tokens(self._workload, self._texts),
            self._core.statistics(),
            times,
            tuple(self._order),
            tuple(self._steps),
            makespan_s=self._now_s,
            cpu_s=time.process_time() - cpu_at,
            wall_s=time.monotonic() - started_at,
            least_pages=-(-self._most_rows // self._core.page_size),
        )

    def _hold_coming(self, indices: list[int]) -> None:
        """Say what is known of coming calls: what their prompts begin with, and when they come."""
        num_before: dict[int, int] = {}
        for call in self._calls:
            awaited = (needed for needed in call.needs if needed not in self._times)
            num_before[call.idx] = max((1 + num_before[needed] for needed in awaited), default=0)
        for idx in indices:
            self._hold(idx)
            self._core.expect_use(SequenceId(idx + 1), num_before[idx])

    def _hold(self, idx: int) -> None:
        """Have a sequence that stands for what is known of a call's prompt."""
        known = self._texts.known_prompt(self._calls[idx])
        sequence_id = SequenceId(idx + 1)
        if idx not in self._opened:
            self._core.open(sequence_id, _NAMESPACE)
            self._opened[idx] = 0
        self._core.append(sequence_id, known[self._opened[idx] :])
        self._opened[idx] = len(known)

    def _start(self, call: Call) -> None:
        self._hold(call.idx)
        prompt = self._texts.known_prompt(call)
        self._texts.prompts[call.idx] = prompt
        self._start_s[call.idx] = self._now_s
        self._sinks[call.idx] = sink = _Sink()
        sequence_id = SequenceId(call.idx + 1)
        self._order.append(call.idx)
        if call.num_output == 0:
            self._core.prefill(sequence_id, sink)
            return
        params = SamplingParams(
            temperature=1.0, seed=call.idx, max_tokens=call.num_output, ignore_eos=True
        )
        self._core.generate(sequence_id, GenerationRequest(params), sink)

    def _step(self) -> None:
        before, started_at = self._core.statistics(), time.monotonic()
        self._core.step()
        seconds = time.monotonic() - started_at if self._step_s is None else self._step_s
        self._now_s += seconds
        after = self._core.statistics()
        self._most_rows = max(
            self._most_rows, after.reads.distinct_rows - before.reads.distinct_rows
        )
        computed = after.prefilled_tokens + after.generated_tokens
        num_rows = computed - before.prefilled_tokens - before.generated_tokens
        self._steps.append(StepFigures(num_rows, seconds))
        ended = [idx for idx, sink in self._sinks.items() if self._look(idx, sink)]
        for idx in ended:
            del self._sinks[idx]
            self._end(self._calls[idx])

    def _look(self, idx: int, sink: _Sink) -> bool:
        if isinstance(sink.end, GenerationFailed):
            raise sink.end.error
        if (sink.arrived or sink.end is not None) and idx not in self._first_s:
            self._first_s[idx] = self._now_s
        if sink.end is None:
            return False
        self._texts.outputs[idx] = tuple(sink.arrived)
        return True

    def _end(self, call: Call) -> None:
        idx = call.idx
        self._times[idx] = CallTimes(
            self._start_s[idx], self._first_s[idx], self._now_s, call.num_output
        )
        if self._tells_next_use:
            # What comes next is known before this one lets go of it.
            self._hold_coming(self._coming_after(idx))
            self._core.expect_last_use(SequenceId(idx + 1))
        self._core.close(SequenceId(idx + 1))
        for dependent in self._dependents[idx]:
            self._num_awaited[dependent] -= 1
            if self._num_awaited[dependent] == 0:
                heappush(self._due, (self._now_s + call.wait_s, dependent))

    def _coming_after(self, idx: int) -> list[int]:
        """Calls that have not started and that this one, directly or not, comes before."""
        found: dict[int, None] = {}
        queue = list(self._dependents[idx])
        while queue:
            dependent = queue.pop()
            if dependent not in found:
                found[dependent] = None
                queue += self._dependents[dependent]
        return sorted(found)
