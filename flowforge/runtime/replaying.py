"""A run brought back to where its journal ends: its core is told again what it was told.

The core is a pure function of its reports, so the reports of all works that ended, in the order of
their ends, give back the very state: loops, branches, retries, catches and joins included, and
whatever was decided by who came first. Nothing is carried out here. What is still in flight
afterwards is for the shell to go on with.

A report is for the work of its path and turn. So steps that were added to a workflow, or changed
before they ran, do no harm: reports that nobody waits for are kept until somebody does, and at the
end dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from flowforge.errors import WorkflowError
from flowforge.runtime.cancelling import can_cancel
from flowforge.runtime.commands import (
    Answered,
    Begin,
    CancelStep,
    ExpectPrompt,
    ExpectUse,
    Foresee,
    GiveUp,
    Opened,
    Prepare,
    ReleaseConversation,
    StartCall,
    StartGeneration,
    StartQuestion,
    StartTimer,
    Stop,
    StopTimer,
)
from flowforge.runtime.core import advance
from flowforge.runtime.recording import key_of, kind_of_work, report_of, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.journal.records import WorkRow
    from flowforge.runtime.commands import Command, Outcome, Report
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import RunState
    from flowforge.runtime.told_events import ToldEvents

StartWork: TypeAlias = StartGeneration | StartCall | StartQuestion


@dataclass(frozen=True, slots=True)
class OpenWork:
    """A work in flight. is_stopped: its step does not want it any more."""

    command: StartWork
    turn: int
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class OpenTimer:
    """A time to wait for. since: when the wait began, in seconds since 1970."""

    command: StartTimer
    since: float


@dataclass(slots=True, eq=False)
class Replayed:
    """What a replay came to, beside the state.

    told: what was told and not decided again. fresh: facts that were decided and never told. works,
    timers: what is in flight, in order of start. turns: the last turn of every path. num_kept:
    works whose ends were taken over.
    """

    told: ToldEvents
    fresh: list[Fact] = field(default_factory=list["Fact"])
    works: dict[str, OpenWork] = field(default_factory=dict[str, OpenWork])
    timers: dict[str, OpenTimer] = field(default_factory=dict[str, OpenTimer])
    turns: dict[str, int] = field(default_factory=dict[str, int])
    num_kept: int = 0
    outcome: Outcome | None = None


def replay(
    state: RunState,
    rows: Iterable[WorkRow],
    begun_at: float,
    told: ToldEvents,
    *,
    is_unchanged: bool = False,
) -> Replayed:
    """Take ended works, in order of their ends, into a state that has not begun.

    begun_at: when the run began, in seconds since 1970. told: its events; those that remain in
    there told of what was not decided again. is_unchanged: the workflow is the one that
    the works are of, so what they are asked with is the same and need not be compared.
    Raises WorkflowError WF702 for a work that is asked for with something else than it was.
    """
    replayed = Replayed(told)
    waiting: dict[str, deque[WorkRow]] = {}
    _report(state, replayed, [Begin()], begun_at)
    for row in rows:
        if row.kind == "order":
            # One that came too late then must not be in time now.
            _take_order(state, replayed, row)
        elif _is_awaited(replayed, row):
            _take(state, replayed, row, is_unchanged=is_unchanged)
            _take_waiting(state, replayed, waiting)
        else:
            waiting.setdefault(row.path, deque()).append(row)
    return replayed


def _take_order(state: RunState, replayed: Replayed, row: WorkRow) -> None:
    report = report_of(row)
    assert isinstance(report, CancelStep) and row.ended_at is not None
    if can_cancel(state, report.path):
        _report(state, replayed, [report], row.ended_at)


def _take_waiting(state: RunState, replayed: Replayed, waiting: dict[str, deque[WorkRow]]) -> None:
    is_over = not waiting
    while not is_over:
        is_over = True
        for path, rows in list(waiting.items()):
            if _is_awaited(replayed, rows[0]):
                _take(state, replayed, rows.popleft())
                is_over = False
            if not rows:
                del waiting[path]


def _is_awaited(replayed: Replayed, row: WorkRow) -> bool:
    if row.kind == "timer":
        return row.path in replayed.timers
    work = replayed.works.get(row.path)
    if work is None or work.turn != row.turn:
        return False
    return work.is_stopped or row.status != "stopped"


def _take(state: RunState, replayed: Replayed, row: WorkRow, *, is_unchanged: bool = False) -> None:
    assert row.ended_at is not None
    report = report_of(row)
    reports = [report]
    if row.kind == "timer":
        del replayed.timers[row.path]
    else:
        command = replayed.works.pop(row.path).command
        if row.status != "stopped" and not is_unchanged:
            _require_same(command, row)
        if isinstance(report, Answered):
            assert isinstance(command, StartGeneration)
            if command.continues != command.path:
                # What is begun by an opened conversation is nothing.
                reports.insert(0, Opened(row.path))
    _report(state, replayed, reports, row.ended_at)
    replayed.num_kept += 1


def _report(state: RunState, replayed: Replayed, reports: Sequence[Report], at: float) -> None:
    decision = advance(state, *reports)
    replayed.fresh += [fact for fact in decision.facts if not replayed.told.take(fact)]
    for command in decision.commands:
        _note(replayed, command, at)
    replayed.outcome = replayed.outcome or decision.outcome


def _note(replayed: Replayed, command: Command, at: float) -> None:
    match command:
        case StartGeneration(path) | StartCall(path) | StartQuestion(path):
            turn = replayed.turns.get(path, -1) + 1
            replayed.turns[path] = turn
            replayed.works[path] = OpenWork(command, turn)
        case StartTimer(timer):
            replayed.timers[timer] = OpenTimer(command, at)
        case Stop(path):
            if path in replayed.works:
                work = replayed.works[path]
                replayed.works[path] = OpenWork(work.command, work.turn, is_stopped=True)
        case StopTimer(timer):
            replayed.timers.pop(timer, None)
        case ReleaseConversation() | ExpectUse() | ExpectPrompt():
            # None is open: they are made again from the journal when somebody forks them.
            pass
        case Foresee() | GiveUp() | Prepare():
            # Nothing is begun here.
            pass


def _require_same(command: StartWork, row: WorkRow) -> None:
    """Raises WorkflowError WF702 when a work is not what was done."""
    if kind_of_work(command) == row.kind and key_of(request_of(command)) == row.key:
        return
    raise WorkflowError(
        "WF702",
        f"{row.path!r} is done, and would now be asked with something else",
        help="put the workflow back as it was to resume, or run from that step again: "
        f"flowforge rerun RUN --from {row.path}",
    )
