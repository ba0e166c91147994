"""The engine's steps: planned, launched, drawn, read. At most one is in flight between two calls.

Without overlap a step is read in the call that launched it. With overlap it stays in flight, and
the next call launches the forward pass behind it before reading it (as SGLang and vLLM do): each
sequence goes on with a token that only the device knows yet. Draws are different: they are launched
when the step before is read, so that masks, penalties and ends are those of known tokens; the
device computes meanwhile. What was launched for a sequence that turns out to be over is thrown
away: rows become part of the cache only when their step is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.answers import DrawList
from flowforge.engine.step_errors import reader_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.engine.answers import Answers
    from flowforge.engine.generations import Generations
    from flowforge.engine.meter import Meter
    from flowforge.engine.model_interface import LaunchedStep, StepResult, StepRunner
    from flowforge.engine.row_draw import DrawnToken
    from flowforge.engine.scheduler import Scheduler
    from flowforge.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in flight."""

    plan: StepPlan
    launched: LaunchedStep
    draws: DrawList


class Steps:
    """Owns what is in flight; the rest is borrowed. overlaps: a runner that `draws_tokens`."""

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        generations: Generations,
        answers: Answers,
        meter: Meter,
        clock: Callable[[], float],
        *,
        overlaps: bool,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._generations = generations
        self._answers = answers
        self._meter = meter
        self._clock = clock
        self._overlaps = overlaps and runner.draws_tokens
        self._in_flight: _Step | None = None
        self._watcher: Callable[[StepPlan], None] | None = None
        self._forward_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self._in_flight is not None or self._scheduler.has_work

    def watch(self, watcher: Callable[[StepPlan], None]) -> None:
        """See `EngineCore.watch_plans`."""
        self._watcher = watcher

    def step(self) -> None:
        """Launch a step and read one: the same, or with overlap the one before."""
        started_at_s, self._forward_s = self._clock(), 0.0
        if self._in_flight is not None and not self._may_run_ahead(self._in_flight.plan):
            self._read()
        self._answers.guess()
        plan = self._scheduler.plan_step()
        if plan.is_empty:
            self._read()
            return
        if self._watcher is not None:
            self._watcher(plan)
        self._meter.num_ahead += self._in_flight is not None
        step = self._launch(plan)
        if self._read(step) and step is not None and self._draw(step):
            self._in_flight = step
            if not self._overlaps:
                self._read()
        self._meter.timed(self._clock() - started_at_s, self._forward_s)

    def forget(self) -> None:
        """Let what is in flight go; nobody is told."""
        self._in_flight = None

    def _may_run_ahead(self, plan: StepPlan) -> bool:
        """Whether the step behind a plan can be decided without knowing what it says."""
        if self._answers.need_tokens:
            return False
        for sequence, is_live in zip(plan.sequences, plan.live(), strict=True):
            generation = sequence.generation
            if is_live and generation is not None and generation.request.constraint is not None:
                return False
        is_guessed = any(chunk.drafted for chunk in plan.chunks)
        return not is_guessed and self._scheduler.fits_ahead()

    def _launch(self, plan: StepPlan) -> _Step | None:
        self._answers.expect(plan)
        draws = DrawList(plan)
        launched_at_s = self._clock()
        self._meter.planned(plan, launched_at_s)
        try:
            launched = self._runner.launch(plan)
        except Exception as error:
            self._answers.settle()
            # What the step before says is not touched by this.
            self._read()
            self._fail([plan], error)
            return None
        finally:
            self._forward_s += self._clock() - launched_at_s
        return _Step(plan, launched, draws)

    def _draw(self, step: _Step) -> bool:
        """Have the tokens of a step drawn; False when the step failed."""
        if not self._runner.draws_tokens:
            return True
        try:
            self._answers.list_draws(step.plan, step.draws)
            step.launched.draw(step.draws.draws, step.draws.kept)
        except Exception as error:
            self._answers.settle()
            self._fail([step.plan], error)
            return False
        return True

    def _read(self, behind: _Step | None = None) -> bool:
        """Read what is in flight, if anything is, and take what it says.

        behind: the step that was launched meanwhile; it fails when this one does.
        """
        step, self._in_flight = self._in_flight, None
        if step is None:
            return True
        asked_at_s = self._clock()
        try:
            result = step.launched.read()
        except Exception as error:
            plans = [step.plan] if behind is None else [step.plan, behind.plan]
            self._answers.settle()
            self._fail(plans, error)
            return False
        finally:
            self._forward_s += self._clock() - asked_at_s
        self._take(step, result)
        return True

    def _take(self, step: _Step, result: StepResult) -> None:
        plan = step.plan
        live = plan.live()
        self._meter.computed(plan, live)
        self._scheduler.committed(plan, live)
        num_chunks = len(plan.chunks)
        for idx, is_live in enumerate(live):
            if not is_live:
                continue
            drawn = self._drawn(step, idx, result)
            if idx < num_chunks:
                self._answers.take_chunk(plan.chunks[idx], result.chunks[idx], drawn)
            else:
                ready = plan.ready[idx - num_chunks]
                self._answers.take_ready(ready, drawn[0] if drawn else None)

    @staticmethod
    def _drawn(step: _Step, idx: int, result: StepResult) -> Sequence[DrawnToken]:
        place = step.draws.places[idx]
        if place is None:
            return ()
        chunks = step.plan.chunks
        num_drawn = 1 + len(chunks[idx].drafted) if idx < len(chunks) else 1
        return result.drawn[place : place + num_drawn]

    def _fail(self, plans: Sequence[StepPlan], error: Exception) -> None:
        told = reader_error(error, "EN220", "the forward pass failed")
        for sequence in self._scheduler.abandon(plans):
            generation = sequence.generation
            if generation is not None:
                self._generations.give_up(sequence, told, "failed")
                self._generations.take_back_scored(sequence, generation)
