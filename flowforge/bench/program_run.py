"""A workload on an engine core, step by step on one thread: counts are the same every time.

The run has a clock of its own, by which every step takes equally long; when all programs wait for
tools the clock goes on to the first that is back. For times see `workflow_run`.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from flowforge.bench.program_calls import (
    MOST_CANDIDATES,
    Segment,
    Texts,
    count_tokens,
    with_unlike_tokens,
)
from flowforge.bench.program_window import ProgramWindow, program_needs
from flowforge.bench.step_log import LivePages, StepLog
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
    from flowforge.bench.program_window import ProgramNeed
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

    makespan_s: by the run's clock, waits for tools included. least_pages: that hold the tokens of
    the calls which ran when most pages were held. num_refilled: output tokens that were computed
    again. log: who ran in each step; empty where nobody asks for it. steps: every step. busy_s: of
    the makespan, when something was to be computed and not only tools were waited for.
    """

    texts: Texts
    counts: TokenCounts
    statistics: EngineStatistics
    times: tuple[CallTimes, ...]
    log: StepLog
    steps: tuple[StepFigures, ...]
    makespan_s: float
    cpu_s: float
    wall_s: float
    busy_s: float
    least_pages: int
    num_refilled: int


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


@dataclass(frozen=True, slots=True)
class RunRules:
    """How a workload is run.

    tells_next_use: hold what is known of the prompts of coming calls and say in how many steps they
    come. has_window: begin a program when its pages fit beside those of the open ones. step_s:
    seconds that a step takes by the run's clock. temperature: of all calls.
    """

    tells_next_use: bool = False
    has_window: bool = False
    step_s: float = 0.02
    temperature: float = 1.0


def run_programs(workload: Workload, core: EngineCore, rules: RunRules) -> ProgramRun:
    """Run a workload to its end on a fresh core. Raises what the engine fails with."""
    return _Runner(workload, core, rules).run()


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
    def __init__(self, workload: Workload, core: EngineCore, rules: RunRules) -> None:
        self._calls = workload.calls
        self._workload = workload
        self._core = core
        self._rules = rules
        self._texts = random_texts(core.model.vocab_size)
        self._now_s = 0.0
        self._due: list[tuple[float, int]] = []
        self._num_awaited = [len(call.needs) for call in self._calls]
        self._dependents: list[list[int]] = [[] for _ in self._calls]
        for call in self._calls:
            for needed in call.needs:
                self._dependents[needed].append(call.idx)
        self._num_following = [0] * len(self._calls)
        for call in reversed(self._calls):
            from_here = self._num_following[call.idx] + call.num_output
            for needed in call.needs:
                self._num_following[needed] = max(self._num_following[needed], from_here)
        self._opened: dict[int, int] = {}
        self._sinks: dict[int, _Sink] = {}
        self._start_s: dict[int, float] = {}
        self._first_s: dict[int, float] = {}
        self._times: dict[int, CallTimes] = {}
        self._log = StepLog(core.page_size)
        self._steps: list[StepFigures] = []
        self._waited_s: list[float] = []
        self._live = LivePages(core.page_size)
        self._peak_pages = self._least_pages = 0
        self._closed = _roots_by_program(workload)
        self._num_left = Counter(call.program for call in workload.calls)
        needs: dict[int, ProgramNeed] = {}
        if rules.has_window:
            needs = program_needs(workload, with_unlike_tokens(workload), core.page_size)
        self._window = ProgramWindow(needs, core.statistics().kv.pages_total)

    def run(self) -> ProgramRun:
        started_at, cpu_at = time.monotonic(), time.process_time()
        self._core.watch_plans(self._log.note)
        if self._rules.tells_next_use:
            self._hold_coming([call.idx for call in self._calls])
        self._open_programs()
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
            self._log,
            tuple(self._steps),
            makespan_s=self._now_s,
            cpu_s=time.process_time() - cpu_at,
            wall_s=time.monotonic() - started_at,
            busy_s=sum(step.seconds for step in self._steps),
            least_pages=self._least_pages,
            num_refilled=num_refilled(
                self._workload,
                self._core.statistics(),
                sum(step.num_rows for step in self._steps),
            ),
        )

    def _open_programs(self) -> None:
        """Begin programs, in order, as long as they may; their first calls are due then."""
        while self._closed and self._window.may_open(next(iter(self._closed))):
            program = next(iter(self._closed))
            self._window.open(program)
            for call in self._closed.pop(program):
                heappush(self._due, (max(self._now_s, call.arrival_s), call.idx))

    def _hold_coming(self, indices: list[int]) -> None:
        """Say what is known of coming calls: what their prompts begin with, and when they come."""
        num_before: dict[int, int] = {}
        for call in self._calls:
            awaited = (needed for needed in call.needs if needed not in self._times)
            num_before[call.idx] = max((1 + num_before[needed] for needed in awaited), default=0)
        for idx in indices:
            self._hold(idx)
            call = self._calls[idx]
            ready_at_s = call.arrival_s
            if call.needs and num_before[idx] == 0:
                last = self._calls[call.needs[-1]]
                ready_at_s = self._now_s + self._expected_wait_s(last)
            self._core.expect_use(SequenceId(idx + 1), num_before[idx], ready_at_s)

    def _expected_wait_s(self, call: Call) -> float:
        """How long its tool may take: as long as the others have taken in the mean."""
        if not call.wait_s or not self._waited_s:
            return 0.0
        return sum(self._waited_s) / len(self._waited_s)

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
        if call.num_output == 0:
            self._core.prefill(sequence_id, sink)
            return
        params = SamplingParams(
            temperature=self._rules.temperature,
            top_k=MOST_CANDIDATES,
            seed=call.idx,
            max_tokens=call.num_output,
            ignore_eos=True,
        )
        request = GenerationRequest(params, num_following=self._num_following[call.idx])
        self._core.generate(sequence_id, request, sink)

    def _step(self) -> None:
        self._core.step()
        self._now_s += self._rules.step_s
        self._look_at_pages()
        self._steps.append(StepFigures(self._log.num_rows, self._rules.step_s))
        ended = [idx for idx, sink in self._sinks.items() if self._look(idx, sink)]
        for idx in ended:
            del self._sinks[idx]
            self._end(self._calls[idx])

    def _look_at_pages(self) -> None:
        """What the calls needed when most pages were held."""
        self._live.noted(self._log.steps[-1], self._texts)
        peak_pages = self._core.statistics().kv.pages_peak_held
        if peak_pages > self._peak_pages:
            self._peak_pages = peak_pages
            self._least_pages = self._live.count(self._tokens_of)

    def _tokens_of(self, idx: int) -> Ids:
        return self._texts.prompts[idx] + tuple(self._sinks[idx].arrived)

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
        if self._rules.tells_next_use:
            # What comes next is known before this one lets go of it.
            self._hold_coming(self._coming_after(idx))
            self._core.expect_last_use(SequenceId(idx + 1))
        self._core.close(SequenceId(idx + 1))
        self._live.ended(idx)
        self._num_left[call.program] -= 1
        if self._num_left[call.program] == 0:
            self._window.close(call.program)
            self._open_programs()
        for dependent in self._dependents[idx]:
            self._num_awaited[dependent] -= 1
            if self._num_awaited[dependent] == 0:
                heappush(self._due, (self._now_s + call.wait_s, dependent))
                self._waited_s.append(call.wait_s)

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


def num_refilled(workload: Workload, statistics: EngineStatistics, num_computed: int) -> int:
    """Of the rows computed, those that are neither of a prompt nor new, nor a wrong guess.

    Nothing where no call was preempted: who ends with a guess has its last row as well.
    """
    if not statistics.scheduler.num_preemptions:
        return 0
    num_written = sum(max(0, call.num_output - 1) for call in workload.calls)
    num_wrong = statistics.speculation.drafted - statistics.speculation.accepted
    return num_computed - num_written - num_wrong - statistics.prefilled_tokens


def _roots_by_program(workload: Workload) -> dict[int, list[Call]]:
    """The calls that need none, of each program in order."""
    roots: dict[int, list[Call]] = {}
    for call in workload.calls:
        roots.setdefault(call.program, []).extend([] if call.needs else [call])
    return roots
