"""One run's place in a journal: what it writes there, and what it finds there when it goes on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread

from flowforge.collector import resting_collector
from flowforge.errors import InternalError, WorkflowError
from flowforge.journal.lease import Lease
from flowforge.journal.records import Resumed, Untold
from flowforge.language.diagnostics import near_miss
from flowforge.runtime.caching import StepCache
from flowforge.runtime.definitions import static_path
from flowforge.runtime.events import RunResumed
from flowforge.runtime.recording import (
    Recorder,
    answer_of,
    key_of,
    offer_from_json,
    request_of,
    said_from_json,
)
from flowforge.runtime.replaying import replay
from flowforge.runtime.told_events import ToldEvents
from flowforge.runtime.uncertainty import UNCERTAIN, OnUncertain

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from flowforge.backends.protocol import GenerationDone, ToolOffer
    from flowforge.journal.records import Entry, RunBegun, RunRow, WorkRow
    from flowforge.journal.writer import JournalWriter
    from flowforge.runtime.commands import StartCall, StartGeneration, Turn
    from flowforge.runtime.events import Fact
    from flowforge.runtime.replaying import Replayed
    from flowforge.runtime.state import RunState

_SAMPLE = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that a model wrote in an earlier process, and what was said before it."""

    continues: str | None
    system: str | None
    model: str | None
    said: tuple[Turn, ...]
    prefill: str
    offer: ToolOffer | None
    done: GenerationDone


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a run stands that goes on.

    replayed: what its core came to. fresh: facts that were not told, because its workflow has
    changed. entries: what the journal is to be told of all this.
    """

    replayed: Replayed
    fresh: list[Fact]
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What a flow finds when it goes on. kept: ended works by path and turn."""

    kept: dict[tuple[str, int], WorkRow]
    interrupted: tuple[str, ...]
    entries: list[Entry]


class RunJournal:
    """The journal as one run sees it. Holds the run's lease until `close`.

    first_seq: number of the first event of this process, once the run goes on.
    on_uncertain: what overrides the tools' own word about calls whose end is not known. cache: of
    the steps, None where the run takes no results.
    """

    def __init__(
        self, writer: JournalWriter, run_id: str, lease: Lease, recorder: Recorder
    ) -> None:
        self.run_id = run_id
        self.recorder: Recorder = recorder
        self.row: RunRow | None = None
        self.on_uncertain: OnUncertain | None = None
        self.first_seq: int = 0
        self.cache: StepCache | None = None
        self._writer = writer
        self._lease = lease
        self._written: dict[tuple[str, int], tuple[int, ...]] = {}
        self._cut: dict[tuple[str, int], WorkRow] = {}
        self._definitions: Mapping[str, str] = {}
        self._is_unchanged = False

    @classmethod
    def begin(cls, writer: JournalWriter, run_id: str, begun: RunBegun) -> Self:
        """Enter a new run. Raises EngineError EN7xx."""
        lease = Lease(writer.journal.path, run_id)
        try:
            writer.journal.begin(run_id, begun)
        except BaseException:
            lease.release()
            raise
        run = cls(writer, run_id, lease, Recorder(writer, run_id))
        run._use_cache(begun)
        return run

    @classmethod
    def resume(
        cls,
        writer: JournalWriter,
        run_id: str,
        definitions: Mapping[str, str],
        *,
        on_uncertain: OnUncertain | None = None,
    ) -> Self:
        """Take a run that is not done. definitions: of its workflow as it is now.

        Raises WorkflowError WF701 for an unknown run, WF702 for a completed step that was changed,
        WF704 for a run that is done, EngineError EN706 for one that another process has.
        """
        row = writer.journal.run(run_id)
        lease = Lease(writer.journal.path, row.run_id)
        try:
            # Its owner may have ended it while we came for the lease.
            row = writer.journal.run(row.run_id)
            if row.status == "done":
                raise WorkflowError(
                    "WF704",
                    f"run {row.run_id!r} is done",
                    help=f"'flowforge show {row.run_id}' shows what it came to",
                )
            run = cls(writer, row.run_id, lease, Recorder(writer, row.run_id))
            run.row = row
            run._use_cache(row.begun)
            run.on_uncertain = on_uncertain
            run._definitions = definitions
            run._is_unchanged = definitions == row.begun.definitions
            run._require_unchanged(row)
        except BaseException:
            lease.release()
            raise
        return run

    @classmethod
    def rerun(
        cls, writer: JournalWriter, run_id: str, new_id: str, begun: RunBegun, step: str
    ) -> Self:
        """Begin a run that takes over all of run `run_id` but `step` and what needs it.

        begun: of the new run, with the workflow as it is now. Raises WorkflowError WF701 for an
        unknown run, WF702 for a step to take over that was changed, WF705 for an unknown step.
        """
        journal = writer.journal
        old = journal.run(run_id)
        if not begun.definitions:
            raise WorkflowError(
                "WF705",
                f"{begun.workflow!r} is a flow in Python, whose steps are not known before it runs",
                help="run it again as a whole, or go on with it by 'flowforge resume'",
            )
        if static_path(step) not in begun.definitions:
            miss = near_miss(static_path(step), begun.definitions)
            raise WorkflowError(
                "WF705",
                f"workflow {begun.workflow!r} has no step {step!r}",
                help=f"did you mean {miss!r}?" if miss else "'flowforge show RUN' lists the steps",
            )
        failed = _failed_paths(old)
        kept = [
            (work.path, work.turn)
            for work in journal.ended_works(old.run_id)
            if not _is_within(work.path, step) and not _is_blamed(work, failed)
        ]
        lease = Lease(journal.path, new_id)
        try:
            journal.begin(new_id, begun)
            journal.copy_works(old.run_id, new_id, kept)
            run = cls(writer, new_id, lease, Recorder(writer, new_id))
            run.row = journal.run(new_id)
            run._use_cache(begun)
            run._definitions = begun.definitions
            run._is_unchanged = begun.definitions == old.begun.definitions
            run._require_unchanged(old, besides=step)
        except BaseException:
            journal.remove([new_id])
            lease.release()
            raise
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes have the run; idempotent."""
        self._lease.release()

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self._writer.journal.path

    @property
    def seed(self) -> int | None:
        """The seed of a run that goes on."""
        return None if self.row is None else self.row.begun.seed

    def _use_cache(self, begun: RunBegun) -> None:
        """Take results of equal steps, unless the run was begun without."""
        if begun.options.get("uses_cache", True):
            is_seeded = bool(begun.options.get("is_seeded", False))
            self.cache = StepCache(self._writer, self.recorder, is_seeded=is_seeded)

    # -- going on ---------------------------------------------------------------------------------

    async def restore(self, state: RunState) -> Restored:
        """Bring a state that has not begun to where the run stands; reads in a worker thread."""
        return await anyio.to_thread.run_sync(self._restore, state)

    def _restore(self, state: RunState) -> Restored:
        row, journal = self.row, self._writer.journal
        assert row is not None
        self._written = journal.partials(row.run_id)
        self._cut = {(work.path, work.turn): work for work in journal.open_works(row.run_id)}
        interrupted = [path for path, _ in self._cut]
        ended = _to_keep(row, journal.ended_works(row.run_id), self._cut)
        begun_at = row.begun.created_at
        with resting_collector():
            told = ToldEvents(journal.event_keys(row.run_id))
            replayed = replay(state, ended, begun_at, told, is_unchanged=self._is_unchanged)
        self.first_seq = told.next_seq
        undone = told.undone
        self.recorder.go_on(replayed.turns)
        self.recorder.archive.go_on(told.next_seq, undone)
        fresh = [*replayed.fresh, RunResumed(replayed.num_kept, tuple(interrupted))]
        restored = Restored(replayed, fresh, [Resumed(self._definitions), Untold(undone)])
        for work in replayed.works.values():
            if not work.is_stopped:
                restored.entries.append(self.recorder.start_of(work.command, work.turn))
        return restored

    async def take_over(self) -> TakenOver:
        """What a flow goes on with: its function is run again, and finds its works by path."""
        return await anyio.to_thread.run_sync(self._take_over)

    def _take_over(self) -> TakenOver:
        row, journal = self.row, self._writer.journal
        assert row is not None
        self._written = journal.partials(row.run_id)
        works = journal.works(row.run_id)
        self._cut = {(work.path, work.turn): work for work in works if work.status is None}
        interrupted = tuple(path for path, _ in self._cut)
        ended = [work for work in works if work.status in {"done", "failed"}]
        kept = {(one.path, one.turn): one for one in _to_keep(row, iter(ended), self._cut)}
        told = tuple(seq for seq, _, _, _ in journal.event_keys(row.run_id))
        return TakenOver(kept, interrupted, [Resumed(self._definitions), Untold(told)])

    def _require_unchanged(self, row: RunRow, *, besides: str | None = None) -> None:
        """Raises WorkflowError WF702 when a completed step is not what it was in `row`."""
        if self._is_unchanged:
            return
        before = row.begun.definitions
        completed = {
            static_path(path)
            for _, _, kind, path in self._writer.journal.event_keys(row.run_id)
            if kind == "step_finished"
            and path is not None
            # What is around the step or needs it is not taken over: it is computed again.
            and (besides is None or self._is_kept(path))
        }
        changed = [
            path
            for path in sorted(completed & before.keys())
            if self._definitions.get(path) != before[path]
        ]
        if changed:
            names = ", ".join(map(repr, changed))
            raise WorkflowError(
                "WF702",
                f"run {row.run_id!r} cannot go on: completed step{'s' * (len(changed) > 1)} "
                f"{names} {'were' if len(changed) > 1 else 'was'} changed in the workflow",
                help="put them back as they were, or run from the first of them again: "
                f"flowforge rerun {row.run_id} --from {changed[0]}",
            )

    def _is_kept(self, path: str) -> bool:
        """Whether a run that takes over works of another has those of a step."""
        return bool(self._writer.journal.works_at(self.run_id, path))

    # -- while it runs ----------------------------------------------------------------------------

    def is_uncertain(self, command: StartCall) -> bool:
        """Whether a call with effects had begun in an earlier process, and its end is not known."""
        if command.tool.effect != "write":
            return False
        return (command.path, self.recorder.turn_of(command.path)) in self._cut

    def written(self, command: StartGeneration) -> tuple[int, ...]:
        """What the model wrote of this very generation in an earlier process."""
        key = (command.path, self.recorder.turn_of(command.path))
        written = self._written.pop(key, ())
        is_same = key in self._cut and self._cut[key].key == key_of(request_of(command))
        return written if is_same else ()

    async def wrote(self, path: str, token_ids: Sequence[int]) -> None:
        """A model wrote more. From time to time it is taken down."""
        if self.recorder.wrote(path, token_ids):
            await self.recorder.keep_partials()

    async def turns_before(self, path: str, open_paths: Container[str]) -> list[PastTurn]:
        """The turns that make the conversation of `path`.

        From its beginning, or from the end of one that is open.
        """
        return await anyio.to_thread.run_sync(self._turns_before, path, open_paths)

    def _turns_before(self, path: str, open_paths: Container[str]) -> list[PastTurn]:
        turns: list[PastTurn] = []
        at: str | None = path
        while at is not None and at not in open_paths:
            rows = self._writer.journal.works_at(self.run_id, at)
            last = self.recorder.turn_of(at)
            own = [_past_turn(row) for row in rows if _is_turn(row) and row.turn <= last]
            if not own:
                raise InternalError("IN513", f"the journal has no conversation of {at!r}")
            turns = own + turns
            at = own[0].continues
        return turns


def _to_keep(
    row: RunRow, ended: Iterator[WorkRow], cut: dict[tuple[str, int], WorkRow]
) -> Iterator[WorkRow]:
    """The ends that a run takes over: of one that failed, all but those it failed by.

    cut: takes the calls that failed only because nobody could say whether they had been made.
    """
    failed = _failed_paths(row)
    for work in ended:
        if _is_blamed(work, failed):
            if _was_uncertain(work):
                cut[work.path, work.turn] = work
        else:
            yield work


def _is_within(path: str, step: str) -> bool:
    """Whether a work or timer is of a step, of its tries and samples, or of what is inside."""
    return path.startswith(step) and path[len(step) : len(step) + 1] in {"", "/", "[", "#", ":"}


def _failed_paths(row: RunRow) -> frozenset[str]:
    if row.status != "failed":
        return frozenset()
    failures = cast("list[dict[str, Any]]", row.outcome)
    return frozenset(failure["path"] for failure in failures)


def _is_blamed(work: WorkRow, failed: frozenset[str]) -> bool:
    """Whether a try failed by this work, by the time that it took, or by an order to cancel it."""
    if work.status == "stopped":
        return False
    path = work.path
    if work.kind in {"timer", "order", "join"}:
        path = path.rpartition(":")[0]
    is_failed_sample = work.status == "failed" and _SAMPLE.sub("", path) in failed
    return path in failed or is_failed_sample


def _was_uncertain(work: WorkRow) -> bool:
    failure = cast("dict[str, Any] | None", work.result)
    return work.status == "failed" and failure is not None and failure["code"] == UNCERTAIN


def _is_turn(row: WorkRow) -> bool:
    return row.kind == "generation" and row.status == "done"


def _past_turn(row: WorkRow) -> PastTurn:
    request = _fields(row.request)
    said = tuple(said_from_json(turn) for turn in request["said"])
    continues = request["continues"]
    return PastTurn(
        None if continues == row.path else continues,
        request["system"],
        request["model"],
        said,
        request["request"].get("prefill", ""),
        offer_from_json(request["request"].get("offer")),
        answer_of(row),
    )


def _fields(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value)
