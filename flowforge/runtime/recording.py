"""A run in the words of its journal: commands, reports and events as rows, and rows as reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from flowforge.backends.protocol import GenerationDone, ToolOffer, Usage
from flowforge.errors import (
    EngineError,
    FlowForgeError,
    InternalError,
    Location,
    ToolError,
    WorkflowError,
)
from flowforge.journal.contents import digest_of
from flowforge.journal.records import Partial, RunEnded, Told, WorkEnded, WorkStarted
from flowforge.runtime.commands import (
    Answered,
    Broken,
    Cancelled,
    CancelStep,
    Failed,
    Returned,
    Said,
    StartCall,
    StartGeneration,
    StartQuestion,
    Stopped,
    Succeeded,
    TimerFired,
    ToolResults,
)
from flowforge.runtime.event_json import fact_as_json, kind_of
from flowforge.runtime.failures import failure_event
from flowforge.runtime.told_events import EventArchive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.backends.protocol import GenerateRequest, Sampling
    from flowforge.grammars.tool_formats import ToolCall, ToolDefinition
    from flowforge.journal.records import Entry, WorkKind, WorkRow
    from flowforge.journal.writer import JournalWriter
    from flowforge.language.program import JsonValue
    from flowforge.runtime.commands import Command, Outcome, Report, Turn
    from flowforge.runtime.events import Event

PARTIAL_INTERVAL_S = 0.5
"""How often what models are writing is taken down: at most so much is written again."""

_UNRECORDED = frozenset(
    {"label", "priority", "num_following", "written", "tags", "run_key", "tell"}
)
"""Fields of a request that change nothing of what a model writes."""

_JOIN = ":join"
"""Behind a path: the name of what its race came to."""

_CANCEL = ":cancel"
"""Behind a path: the name of the order to cancel what runs under it."""

_FAMILIES = {one.__name__: one for one in (WorkflowError, EngineError, ToolError, InternalError)}


class Recorder:
    """Makes the entries of one run. Owned by its shell; knows which works are open."""

    def __init__(
        self,
        writer: JournalWriter,
        run_id: str,
        *,
        now: Callable[[], float] = time.time,
        partial_interval_s: float = PARTIAL_INTERVAL_S,
    ) -> None:
        """now: seconds since 1970, on every machine that the run may go on on."""
        self.run_id = run_id
        self.writer = writer
        self.now: Callable[[], float] = now
        self._turns: dict[str, int] = {}
        self._writing: dict[str, list[int]] = {}
        self.partial_interval_s: float = partial_interval_s
        self._kept_at_s = time.monotonic()
        self.archive: EventArchive = EventArchive(writer.journal, run_id)

    def started(self, commands: Sequence[Command]) -> list[Entry]:
        """The works that these commands start."""
        entries: list[Entry] = []
        for command in commands:
            if isinstance(command, StartGeneration | StartCall | StartQuestion):
                turn = self._turns.get(command.path, -1) + 1
                entries.append(self.start_of(command, turn))
        return entries

    def start_of(
        self, command: StartGeneration | StartCall | StartQuestion, turn: int
    ) -> WorkStarted:
        """The entry of a work, whose turn this is from now on."""
        self._turns[command.path] = turn
        kind = kind_of_work(command)
        request = request_of(command)
        return WorkStarted(command.path, turn, kind, key_of(request), request, self.now())

    def ended(self, report: Report) -> WorkEnded | None:
        """The entry of a report, if it ends a work."""
        now = self.now()
        match report:
            case Answered(path, done, is_cached):
                self._writing.pop(path, None)
                result = {**_answer_as_json(done), **_origin(is_cached)}
                turn = self._turns.get(path, 0)
                return WorkEnded(path, turn, "generation", "done", result, done.output_ids, now)
            case Returned(path, value, is_cached):
                turn = self._turns.get(path, 0)
                returned: JsonValue = {"value": value, **_origin(is_cached)}
                return WorkEnded(path, turn, "call", "done", returned, None, now)
            case Failed(path, error):
                self._writing.pop(path, None)
                turn = self._turns.get(path, 0)
                return WorkEnded(path, turn, "call", "failed", error_as_json(error), None, now)
            case Stopped(path):
                self._writing.pop(path, None)
                turn = self._turns.get(path, 0)
                return WorkEnded(path, turn, "call", "stopped", None, None, now)
            case TimerFired(timer):
                return WorkEnded(timer, 0, "timer", "done", None, None, now)
            case CancelStep(path):
                return WorkEnded(f"{path}{_CANCEL}", 0, "order", "done", None, None, now)
            case _:
                return None

    def won(self, path: str, turn: int, winner: JsonValue) -> WorkEnded:
        """The entry of a race that somebody has won."""
        return WorkEnded(path, turn, "join", "done", winner, None, self.now())

    def go_on(self, turns: Mapping[str, int]) -> None:
        """Take over the last turn of every path from an earlier process."""
        self._turns = dict(turns)

    def turn_of(self, path: str) -> int:
        """The turn of the work of a path, the last one that was started."""
        return self._turns.get(path, 0)

    def told(self, event: Event) -> Told:
        """The entry of an event."""
        path = cast("str | None", getattr(event.fact, "path", None))
        fact = cast("JsonValue", fact_as_json(event.fact))
        return Told(event.seq, event.time_s, kind_of(event.fact), path, fact)

    def run_ended(self, outcome: Outcome | None) -> RunEnded:
        """The entry of the end of the run."""
        now = self.now()
        match outcome:
            case Succeeded(outputs):
                return RunEnded("done", dict(outputs), now)
            case Broken(failures):
                told = [fact_as_json(failure_event(failure)) for failure in failures]
                return RunEnded("failed", cast("JsonValue", told), now)
            case Cancelled() | None:
                return RunEnded("cancelled", None, now)

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Return when the entries are on the disk. Raises EngineError EN7xx."""
        if entries:
            await self.writer.commit(self.run_id, entries)
            told = [entry.seq for entry in entries if isinstance(entry, Told)]
            self.archive.num_kept = max([self.archive.num_kept, *(seq + 1 for seq in told)])

    # -- what models are writing ------------------------------------------------------------------

    def wrote(self, path: str, token_ids: Sequence[int]) -> bool:
        """A model wrote more; whether it is time to take down what all have written."""
        self._writing.setdefault(path, []).extend(token_ids)
        now = time.monotonic()
        if now - self._kept_at_s < self.partial_interval_s:
            return False
        self._kept_at_s = now
        return True

    async def keep_partials(self) -> None:
        """Take down what models have written so far in works that have not ended."""
        partials = [
            Partial(path, self._turns.get(path, 0), tuple(token_ids))
            for path, token_ids in self._writing.items()
            if token_ids
        ]
        if partials:
            await self.writer.keep_partials(self.run_id, partials)


def join_path(path: str) -> str:
    """The path under which a journal has what a race of branches came to."""
    return f"{path}{_JOIN}"


def kind_of_work(command: StartGeneration | StartCall | StartQuestion) -> WorkKind:
    """What a command starts, in the journal's words."""
    match command:
        case StartGeneration():
            return "generation"
        case StartCall():
            return "call"
        case StartQuestion():
            return "question"


def request_of(command: StartGeneration | StartCall | StartQuestion) -> JsonValue:
    """All that a work is asked with, as JSON."""
    match command:
        case StartGeneration(_, continues, system, said, request):
            # Only what is not left to its default: a field that a later version adds must not make
            # every request of today another one.
            asked = _chosen(request, _UNRECORDED)
            asked["sampling"] = _chosen(request.sampling, frozenset())
            told = {"continues": continues, "system": system, "said": said, "model": command.model}
            return _plain({**told, "request": asked})
        case StartCall(_, tool, arguments, member):
            call: dict[str, object] = {
                "tool": tool.name,
                "effect": tool.effect,
                "arguments": arguments,
            }
            return _plain(call if member is None else {**call, "member": member})
        case StartQuestion(_, prompt, choices, show):
            return _plain({"prompt": prompt, "choices": choices, "show": show})


def key_of(request: JsonValue) -> str:
    """A hash of what decides a work's result, but for the seed, which is the run's."""
    return digest_of(without_seed(request))


def without_seed(request: JsonValue) -> JsonValue:
    """What a work is asked with, but for its seed."""
    if not isinstance(request, dict) or not isinstance(asked := request.get("request"), dict):
        return request
    sampling = cast("dict[str, JsonValue]", asked["sampling"])
    unseeded = {name: value for name, value in sampling.items() if name != "seed"}
    return {**request, "request": {**asked, "sampling": unseeded}}


def report_of(row: WorkRow) -> Report:
    """The report that a row of an ended work was made of."""
    path, result = row.path, cast("dict[str, Any]", row.result)
    if row.kind == "timer":
        return TimerFired(path)
    if row.kind == "order":
        return CancelStep(path.removesuffix(_CANCEL))
    match row.status:
        case "done":
            if row.kind == "generation":
                return Answered(path, answer_of(row), was_cached(row))
            return Returned(path, result["value"], was_cached(row))
        case "failed":
            return Failed(path, error_from_json(result))
        case "stopped":
            return Stopped(path)
        case None:
            raise InternalError("IN512", f"work {path!r} of the journal has no end")


def was_cached(row: WorkRow) -> bool:
    """Whether the result of a work was taken from the step cache."""
    return isinstance(row.result, dict) and row.result.get("is_cached") is True


def answer_of(row: WorkRow) -> GenerationDone:
    """What a generation came to. prompt_ids: not kept; output_ids where the row has them."""
    result = cast("dict[str, Any]", row.result)
    return GenerationDone(
        text=result["text"],
        finish_reason=result["finish_reason"],
        usage=Usage(**result["usage"]),
        output_ids=row.tokens,
        num_written=result["num_written"],
        calls=_calls(result.get("calls", [])),
        cuts_call=result.get("cuts_call", False),
        mean_logprob=result.get("mean_logprob"),
    )


def _calls(told: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    if not told:
        return ()
    from flowforge.grammars.tool_formats import ToolCall

    return tuple(ToolCall(**call) for call in told)


def said_from_json(told: Mapping[str, Any]) -> Turn:
    """A turn of a request again."""
    if "results" in told:
        return ToolResults(tuple(told["results"]))
    values: Any = tuple((start, end) for start, end in told.get("values", ()))
    return Said(**{**told, "values": values})


def offer_from_json(told: dict[str, Any] | None) -> ToolOffer | None:
    """The tools of a request again."""
    if told is None:
        return None
    from flowforge.grammars.tool_formats import NamedTool

    choice: Any = told["choice"]
    tools = tuple(_definition(tool) for tool in told["tools"])
    chosen: Any = NamedTool(**choice) if isinstance(choice, dict) else choice
    return ToolOffer(tools, chosen, told["max_calls"])


def _definition(told: dict[str, Any]) -> ToolDefinition:
    from flowforge.grammars.tool_formats import ArgumentGrammar, ToolDefinition

    grammars = {name: ArgumentGrammar(**one) for name, one in told.get("grammars", {}).items()}
    return ToolDefinition(told["name"], told["description"], told["parameters"], grammars)


def error_as_json(error: FlowForgeError) -> JsonValue:
    """An error with what a person and a `catch` see of it."""
    family = next((name for name, one in _FAMILIES.items() if isinstance(error, one)), None)
    location = None if error.location is None else asdict(error.location)
    return {
        "family": family,
        "code": error.code,
        "message": error.message,
        "help": error.help,
        "location": location,
    }


def error_from_json(told: Mapping[str, Any]) -> FlowForgeError:
    """The error again; its cause is not kept."""
    location = told["location"]
    return _FAMILIES.get(told["family"] or "", FlowForgeError)(
        told["code"],
        told["message"],
        location=None if location is None else Location(**location),
        help=told["help"],
    )


def _origin(is_cached: bool) -> dict[str, JsonValue]:
    return {"is_cached": True} if is_cached else {}


def _answer_as_json(done: GenerationDone) -> dict[str, JsonValue]:
    return {
        "text": done.text,
        "finish_reason": done.finish_reason,
        "usage": asdict(done.usage),
        "num_written": done.num_written,
        "calls": [asdict(call) for call in done.calls],
        "cuts_call": done.cuts_call,
        "mean_logprob": done.mean_logprob,
    }


def _chosen(options: GenerateRequest | Sampling, besides: frozenset[str]) -> dict[str, object]:
    return {
        one.name: value
        for one in fields(options)
        if one.name not in besides and (value := getattr(options, one.name)) != one.default
    }


def _plain(value: object) -> JsonValue:
    """JSON has no tuples and no dataclasses."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, Mapping):
        named = cast("Mapping[str, object]", value)
        return {name: _plain(inner) for name, inner in named.items()}
    assert is_dataclass(value), f"a request holds {type(value).__name__}"
    return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
