"""A workload as workflows, run by FlowForge's runtime on the engine's own thread, in real time.

Nothing is stepped by hand: the runtime decides what is asked for when, the engine's thread computes
beside the event loop, and tools are waited for. What a run came to is read from its events, as any
reader has them, and from the engine's statistics.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.engine import EngineBackend
from flowforge.bench.program_calls import count_tokens, with_unlike_tokens
from flowforge.bench.program_run import (
    CallTimes,
    ProgramRun,
    StepFigures,
    num_refilled,
    random_texts,
)
from flowforge.bench.program_window import ProgramWindow, program_needs
from flowforge.bench.program_workflows import step_of, tool_step_of, workflows_of
from flowforge.bench.step_log import StepLog, TimedSteps
from flowforge.bench.token_text import ids_of, plain_template, token_tokenizer
from flowforge.engine.engine import Engine
from flowforge.runtime.events import StepFinished, StepStarted, StepText
from flowforge.runtime.run import start
from flowforge.runtime.tool_times import ToolTimes
from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.bench.program_calls import Workload
    from flowforge.bench.program_workflows import ProgramWorkflow
    from flowforge.engine.core import EngineCore
    from flowforge.runtime.events import Event
    from flowforge.runtime.policy import RunPolicy
    from flowforge.runtime.run import Run


@dataclass(frozen=True, slots=True)
class WorkflowRules:
    """How a workload is run as workflows.

    policy: what the runtime makes of what it knows. has_window: begin a program when its pages fit
    beside those of the open ones. temperature: of all calls.
    """

    policy: RunPolicy
    has_window: bool = False
    temperature: float = 1.0


def run_workflows(
    workload: Workload,
    make_core: Callable[[], EngineCore],
    vocab_size: int,
    rules: WorkflowRules,
) -> ProgramRun:
    """Run a workload to its end on a fresh core. Raises what a run of it fails with.

    make_core: called on the engine's thread. vocab_size: ids that prompts are made of.
    """
    return anyio.run(_Workflows(workload, make_core, vocab_size, rules).run)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run that is over. begun_s: when it could begin, by the monotonic clock."""

    started_s: float
    begun_s: float
    run: Run

    async def told(self, origin_s: float) -> _Told:
        """What its events say, in seconds from `origin_s`."""
        events = [event async for event in self.run.events()]
        return _Told(events, self.started_s - origin_s, self.begun_s - origin_s)


class _Workflows:
    def __init__(
        self,
        workload: Workload,
        make_core: Callable[[], EngineCore],
        vocab_size: int,
        rules: WorkflowRules,
    ) -> None:
        self._workload = workload
        self._rules = rules
        self._texts = random_texts(vocab_size)
        self._workflows = workflows_of(workload, self._texts, rules.temperature)
        self._engine = Engine(lambda: self._watched(make_core()))
        self._steps = TimedSteps(self._engine.statistics)
        self._tokenizer = token_tokenizer(vocab_size)
        self._page_size = 1
        self._ended: dict[int, _Ended] = {}
        self._window = ProgramWindow({}, 0)
        self._has_closed = anyio.Event()
        self._tool_times = ToolTimes()

    def _watched(self, core: EngineCore) -> EngineCore:
        # Whatever a model says, it goes on for as long as the call does.
        core.model = replace(core.model, eos_token_ids=frozenset())
        core.watch_plans(self._steps.note)
        self._page_size = core.page_size
        return core

    async def run(self) -> ProgramRun:
        async with self._engine as engine:
            backend = EngineBackend(engine, self._tokenizer, plain_template(self._tokenizer))
            if self._rules.has_window:
                texts = with_unlike_tokens(self._workload)
                needs = program_needs(self._workload, texts, self._page_size)
                self._window = ProgramWindow(needs, engine.statistics().kv.pages_total)
            started_s, cpu_s = time.monotonic(), time.process_time()
            await self._run_all(backend, started_s)
            wall_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
            statistics = await engine.settle()
            self._steps.look()
            await engine.check_invariants()
        # To read events takes time that belongs to no run.
        told = {number: await one.told(started_s) for number, one in self._ended.items()}
        times, waits = self._read_events(told)
        return ProgramRun(
            self._texts,
            count_tokens(self._workload, self._texts),
            statistics,
            times,
            StepLog(self._page_size),
            self._step_figures(),
            makespan_s=max(one.end_s for one in times),
            cpu_s=cpu_s,
            wall_s=wall_s,
            busy_s=_length_of_union([*waits, *((one.start_s, one.end_s) for one in times)]),
            least_pages=self._steps.least_pages(self._page_size, self._continued_by()),
            num_refilled=num_refilled(self._workload, statistics, sum(self._steps.num_rows)),
        )

    async def _run_all(self, backend: EngineBackend, started_s: float) -> None:
        """Begin programs, in order, as they may be; the end of one may let another in."""
        try:
            async with anyio.create_task_group() as tasks:
                for workflow in self._workflows:
                    while not self._window.may_open(workflow.number):
                        await self._has_closed.wait()
                    self._window.open(workflow.number)
                    begun_s = max(time.monotonic(), started_s + workflow.arrival_s)
                    tasks.start_soon(self._run_one, workflow, backend, begun_s)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _run_one(
        self, workflow: ProgramWorkflow, backend: EngineBackend, begun_s: float
    ) -> None:
        if begun_s > time.monotonic():
            await anyio.sleep(begun_s - time.monotonic())
        started_s = time.monotonic()
        async with start(
            workflow.program,
            workflow.inputs,
            backend,
            seed=workflow.number,
            policy=self._rules.policy,
            tool_times=self._tool_times,
        ) as run:
            await run.result()
        self._window.close(workflow.number)
        self._has_closed.set()
        self._has_closed = anyio.Event()
        self._ended[workflow.number] = _Ended(started_s, begun_s, run)

    def _continued_by(self) -> dict[int, list[int]]:
        """The calls that go on with the conversation of each."""
        continued_by: dict[int, list[int]] = {}
        for workflow in self._workflows:
            for idx, source in workflow.continued.items():
                continued_by.setdefault(source, []).append(idx)
        return continued_by

    def _step_figures(self) -> tuple[StepFigures, ...]:
        """Of steps that another one followed; what came between them counts as theirs."""
        starts_s, num_rows = self._steps.starts_s, self._steps.num_rows
        seconds = [after - before for before, after in pairwise(starts_s)]
        return tuple(map(StepFigures, num_rows, seconds))

    def _read_events(
        self, told: Mapping[int, _Told]
    ) -> tuple[tuple[CallTimes, ...], list[tuple[float, float]]]:
        """When calls could start, said something and ended; and what was lost before tools began.

        told: by the runs of the programs. Fills in what was said.
        """
        calls = self._workload.calls
        times: list[CallTimes] = []
        lost: list[tuple[float, float]] = []
        for call in calls:
            of_run = told[call.program]
            ready_s = of_run.begun_s
            for needed in call.needs:
                at_s = told[calls[needed].program].ended[step_of(needed)]
                waits_since_s = of_run.started.get(tool_step_of(needed))
                if waits_since_s is not None:
                    lost.append((at_s, waits_since_s))
                    at_s = waits_since_s + calls[needed].wait_s
                ready_s = max(ready_s, at_s)
            step = step_of(call.idx)
            end_s = of_run.ended[step]
            times.append(CallTimes(ready_s, of_run.first[step], end_s, max(1, call.num_output)))
            prompt = self._texts.known_prompt(call)
            self._texts.prompts[call.idx] = prompt
            self._texts.outputs[call.idx] = of_run.said[step][: call.num_output]
            assert of_run.prompt_lens[step] == len(prompt), "a prompt has tokens of its own"
        return tuple(times), lost


class _Told:
    """What the events of one run say of its steps, by name.

    started_s, begun_s: of the run; all times count from where these do.
    """

    def __init__(self, events: Sequence[Event], started_s: float, begun_s: float) -> None:
        self.begun_s = begun_s
        self.started: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.said: dict[str, tuple[int, ...]] = {}
        self.prompt_lens: dict[str, int] = {}
        for event in events:
            at_s = started_s + event.time_s
            match event.fact:
                case StepStarted(path):
                    self.started[path] = at_s
                case StepText(path, num_tokens=num_tokens) if num_tokens:
                    self.first.setdefault(path, at_s)
                case StepFinished(path, str(value), usage=usage) if usage is not None:
                    self.ended[path] = at_s
                    self.said[path] = ids_of(value)
                    self.prompt_lens[path] = usage.prompt_tokens
                case _:
                    pass


def _length_of_union(spans: list[tuple[float, float]]) -> float:
    """How long at least one of these lasts."""
    total, covered_until = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(start_s, covered_until))
        covered_until = max(covered_until, end_s)
    return total
