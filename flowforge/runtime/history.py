"""Runs of a journal, read back: what they came to, step by step, and where two of them part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flowforge.runtime.event_json import fact_from_json
from flowforge.runtime.events import Event
from flowforge.runtime.picture import RunPicture
from flowforge.runtime.recording import without_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.journal.reader import JournalReader
    from flowforge.journal.records import RunRow, WorkRow
    from flowforge.language.program import JsonValue
    from flowforge.runtime.picture import StepPicture


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run and what its events say of it. works: those of every path, turn by turn."""

    row: RunRow
    picture: RunPicture
    works: Mapping[str, list[WorkRow]]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part: a step, or None for the runs as a whole. one, other: what each has."""

    path: str | None
    what: str
    one: JsonValue
    other: JsonValue


def history_of(journal: JournalReader, run_id: str) -> RunHistory:
    """Read a run. Raises WorkflowError WF701."""
    row = journal.run(run_id)
    picture = RunPicture()
    for told in journal.events(row.run_id):
        fact = fact_from_json(told.kind, cast("dict[str, Any]", told.fact))
        picture.take(Event(told.seq, told.time_s, fact))
    works: dict[str, list[WorkRow]] = {}
    for work in journal.works(row.run_id):
        if work.kind not in {"timer", "order", "join"}:
            works.setdefault(work.path, []).append(work)
    return RunHistory(row, picture, works)


def differences(one: RunHistory, other: RunHistory) -> list[Difference]:
    """What differs, in the order in which the first run came to it.

    A step differs by what it was asked with before it differs by what it came to.
    """
    found: list[Difference] = []
    begun, begun_too = one.row.begun, other.row.begun
    for what, left, right in (
        ("workflow", begun.workflow, begun_too.workflow),
        ("inputs", dict(begun.inputs), dict(begun_too.inputs)),
        ("seed", begun.seed, begun_too.seed),
        ("model", begun.options.get("model"), begun_too.options.get("model")),
    ):
        if left != right:
            found.append(Difference(None, what, left, right))
    paths = dict.fromkeys([*one.picture.steps, *other.picture.steps])
    for path in paths:
        difference = _step_difference(path, one, other)
        if difference is not None:
            found.append(difference)
    return found


def _step_difference(path: str, one: RunHistory, other: RunHistory) -> Difference | None:
    step, step_too = one.picture.steps.get(path), other.picture.steps.get(path)
    if step is None or step_too is None:
        return Difference(path, "runs", step is not None, step_too is not None)
    asked, asked_too = _requests(one, path), _requests(other, path)
    for turn, turn_too in zip(asked, asked_too, strict=False):
        if turn != turn_too:
            return Difference(path, "prompt", *_parts_that_differ(turn, turn_too))
    if len(asked) != len(asked_too):
        return Difference(path, "turns", len(asked), len(asked_too))
    for what in ("status", "value"):
        left, right = getattr(step, what), getattr(step_too, what)
        if left != right:
            return Difference(path, what, left, right)
    failure, failure_too = _failure(step), _failure(step_too)
    if failure != failure_too:
        return Difference(path, "error", failure, failure_too)
    return None


def _requests(run: RunHistory, path: str) -> list[JsonValue]:
    """What a step was asked with. The seeds follow from the run's, which is told apart."""
    return [without_seed(work.request) for work in run.works.get(path, [])]


def _parts_that_differ(one: JsonValue, other: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Two values without the fields that they have in common."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one, other
    left: dict[str, JsonValue] = {}
    right: dict[str, JsonValue] = {}
    for name in dict.fromkeys([*one, *other]):
        here, there = one.get(name), other.get(name)
        if here != there:
            left[name], right[name] = _parts_that_differ(here, there)
    return left, right


def _failure(step: StepPicture) -> JsonValue:
    return None if step.failure is None else f"{step.failure.message} [{step.failure.code}]"
