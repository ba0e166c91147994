"""A flow that goes on: its function runs again, and what it had done comes from the journal.

Works are found by their path and their turn there, whatever order branches come to them in. What
is found is not done again; a conversation takes a turn over with its tokens, and computes nothing
until it is gone on with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.journal.records import WorkRow
from flowforge.runtime.commands import (
    Answered,
    Failed,
    Returned,
    StartCall,
    StartGeneration,
    StartQuestion,
    Stopped,
)
from flowforge.runtime.events import RunResumed, StepPart, StepText
from flowforge.runtime.failures import as_flowforge_error
from flowforge.runtime.recording import (
    join_path,
    key_of,
    kind_of_work,
    report_of,
    request_of,
)
from flowforge.runtime.uncertainty import may_run_again

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from flowforge.backends.protocol import GenerateRequest, GenerationDone
    from flowforge.journal.records import Entry
    from flowforge.language.program import JsonValue, ToolSpec
    from flowforge.runtime.caching import StepCache
    from flowforge.runtime.commands import Outcome, Report
    from flowforge.runtime.events import Event, Fact
    from flowforge.runtime.people import Asker
    from flowforge.runtime.run_journal import RunJournal
    from flowforge.runtime.told_events import EventArchive


@dataclass(frozen=True, slots=True)
class Race:
    """Branches of which the first to come to its end wins.

    winner: the path of the branch that won in an earlier process, if one did.
    """

    path: str
    turn: int
    winner: str | None


class FlowMemo:
    """The journal of one flow run. Events wait for the next commit; nothing else does."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self._kept: dict[tuple[str, int], WorkRow] = {}
        self._turns: dict[str, int] = {}
        self._open: set[str] = set()
        self._entries: list[Entry] = []
        self.is_over = False

    @property
    def archive(self) -> EventArchive:
        """The events of the run that are written down."""
        return self._journal.recorder.archive

    @property
    def cache(self) -> StepCache | None:
        """Results of equal turns; None where the run takes none."""
        return self._journal.cache

    async def take_over(self) -> RunResumed | None:
        """Read what an earlier process did; what is to be told of it."""
        if self._journal.row is None:
            return None
        taken = await self._journal.take_over()
        self._kept = taken.kept
        self._entries += taken.entries
        return RunResumed(len(taken.kept), taken.interrupted)

    def tap(self, event: Event) -> None:
        """An event was told; texts are not kept, nor what is told after the end was entered."""
        if not self.is_over and not isinstance(event.fact, StepText | StepPart):
            self._entries.append(self._journal.recorder.told(event))

    async def end(self, outcome: Outcome | None) -> None:
        """Write the end down, and let others have the run. Raises EngineError EN7xx."""
        try:
            await self._commit(self._journal.recorder.run_ended(outcome))
        finally:
            self._journal.close()

    # -- races ------------------------------------------------------------------------------------

    def open_race(self, path: str) -> Race:
        """Branches of which one is to win are about to start; whether one has already."""
        key = join_path(path)
        turn = self._turns.get(key, -1) + 1
        self._turns[key] = turn
        row = self._kept.pop((key, turn), None)
        return Race(key, turn, None if row is None else cast("Any", row.result)["winner"])

    async def end_race(self, race: Race, winner: str, losers: Iterable[str]) -> None:
        """Write down who won, before anybody acts on it, and that the others were stopped."""
        recorder = self._journal.recorder
        beaten = set(losers)
        inside = tuple(f"{path}/" for path in beaten)
        stopped = [one for one in self._open if one in beaten or one.startswith(inside)]
        ends = [recorder.ended(Stopped(path)) for path in stopped]
        self._open.difference_update(stopped)
        await self._commit(
            recorder.won(race.path, race.turn, {"winner": winner}),
            *(end for end in ends if end is not None),
        )

    # -- works ------------------------------------------------------------------------------------

    async def ask(self, question: StartQuestion, asker: Asker) -> JsonValue:
        """The answer that was given, or is given now."""

        async def act() -> Report:
            return Returned(question.path, await asker(question))

        return await self._value_of(question, act)

    async def call(
        self,
        spec: ToolSpec,
        arguments: dict[str, JsonValue],
        path: str,
        act: Callable[[], Awaitable[JsonValue]],
        asker: Asker,
        tell: Callable[[Fact], None],
    ) -> JsonValue:
        """What a tool returned, or returns now. Raises WorkflowError WF703 as workflows do."""
        command = StartCall(path, spec, arguments)

        async def act_once() -> Report:
            if self._journal.is_uncertain(command):
                policy = self._journal.on_uncertain or spec.on_uncertain
                if not await may_run_again(command, policy, asker, tell):
                    return Returned(path, None)
            return Returned(path, await act())

        return await self._value_of(command, act_once)

    def has_answer(self, request: GenerateRequest) -> bool:
        """Whether there is an end of the next turn of a request's path."""
        return (request.label, self._turns.get(request.label, -1) + 1) in self._kept

    async def take(self, request: GenerateRequest, found: Answered, asked: StartGeneration) -> None:
        """Write down a turn that needs not be written: `kept_answer` has it then."""
        command = _generation(request)
        path = command.path
        await self._begin(command, asked)
        ended = self._journal.recorder.ended(found)
        assert ended is not None
        self._open.discard(path)
        await self._commit(ended)
        turn, key = self._turns[path], key_of(request_of(command))
        self._turns[path] = turn - 1
        self._kept[path, turn] = WorkRow(
            *(path, turn, "generation", key, None, 1, ended.at, 0, ended.at),
            *("done", ended.result, ended.tokens),
        )

    async def kept_answer(self, request: GenerateRequest) -> GenerationDone | None:
        """What a model wrote for this request. Raises what it failed with."""
        report = self._kept_report(_generation(request))
        if isinstance(report, Failed):
            raise report.error
        return report.done if isinstance(report, Answered) else None

    async def begin_answer(
        self, request: GenerateRequest, asked: StartGeneration
    ) -> tuple[int, ...]:
        """A model is about to write; what it had written before it was cut.

        asked: the turn with what was said before it, for those who look at the run.
        """
        command = _generation(request)
        await self._begin(command, asked)
        return self._journal.written(command)

    async def wrote(self, path: str, token_ids: tuple[int, ...]) -> None:
        """A model wrote more."""
        await self._journal.wrote(path, token_ids)

    async def end_answer(self, request: GenerateRequest, end: GenerationDone | Exception) -> None:
        """A model wrote to its end, or failed."""
        path = request.label
        if isinstance(end, Exception):
            await self._end(Failed(path, as_flowforge_error(end)))
        else:
            await self._end(Answered(path, end))

    async def _value_of(
        self, command: StartCall | StartQuestion, act: Callable[[], Awaitable[Report]]
    ) -> JsonValue:
        report = self._kept_report(command)
        if report is None:
            await self._begin(command)
            try:
                report = await act()
            except FlowForgeError as error:
                report = Failed(command.path, error)
            await self._end(report)
        if isinstance(report, Failed):
            raise report.error
        assert isinstance(report, Returned)
        return report.value

    def _kept_report(self, command: StartGeneration | StartCall | StartQuestion) -> Report | None:
        turn = self._turns.get(command.path, -1) + 1
        row = self._kept.pop((command.path, turn), None)
        if row is None:
            return None
        self._turns[command.path] = turn
        if row.kind != kind_of_work(command) or row.key != key_of(request_of(command)):
            raise WorkflowError(
                "WF702",
                f"{command.path!r} is done, and would now be asked with something else",
                help="put the flow back as it was to resume, or run it again",
            )
        return report_of(row)

    async def _begin(
        self,
        command: StartGeneration | StartCall | StartQuestion,
        asked: StartGeneration | None = None,
    ) -> None:
        turn = self._turns.get(command.path, -1) + 1
        self._turns[command.path] = turn
        self._open.add(command.path)
        started = self._journal.recorder.start_of(command, turn)
        await self._commit(
            started if asked is None else replace(started, request=request_of(asked))
        )

    async def _end(self, report: Report) -> None:
        ended = self._journal.recorder.ended(report)
        assert ended is not None
        self._open.discard(ended.path)
        await self._commit(ended)

    async def _commit(self, *entries: Entry) -> None:
        waiting, self._entries = self._entries, []
        await self._journal.recorder.commit([*waiting, *entries])


def _generation(request: GenerateRequest) -> StartGeneration:
    """A turn of a chat as a work that a journal may have.

    What was said before it decides nothing: it may hold what a flow has from elsewhere, as the time
    of day, and must not keep a run from going on.
    """
    return StartGeneration(request.label, None, None, (), request)
