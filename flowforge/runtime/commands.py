"""What passes between the core, which decides, and the shell, which acts.

A *work* is what the shell does for a step beside the core: a generation, a tool call, a question.
Each has a path of its own, which is also that of its conversation, and ends with exactly one
report: `Answered`, `Returned`, `Failed` or `Stopped`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import GenerateRequest, GenerationDone
    from flowforge.errors import FlowForgeError
    from flowforge.language.program import JsonValue, ToolSpec
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import Failure


@dataclass(frozen=True, slots=True)
class Said:
    """One turn whose text is given. values: start and end of what values of the run put there."""

    role: Literal["user", "assistant"]
    text: str
    values: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResults:
    """The results of the calls of the turn before, in their order."""

    results: tuple[JsonValue, ...]


Turn: TypeAlias = Said | ToolResults
"""What is said before a model writes."""


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Append the turns `said` to the conversation of `path` and let the model write.

    continues: None opens that conversation with `system`; another path forks that one; `path`
    itself goes on with the conversation that is there. model: of the conversation, None for the
    run's own. cache_s: how old a result may be that is taken instead; None takes none. is_seeded:
    whether the file gives a seed. tells_parts: whether `PartClosed` is of use.
    """

    path: str
    continues: str | None
    system: str | None
    said: tuple[Turn, ...]
    request: GenerateRequest
    model: str | None = None
    cache_s: float | None = None
    is_seeded: bool = False
    tells_parts: bool = False


@dataclass(frozen=True, slots=True)
class Foresee:
    """This generation will probably be asked for: it may begin, told to nobody.

    It is asked for by an equal `StartGeneration`, which takes what has been written, or given up.
    """

    generation: StartGeneration


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The generation of `path` that was foreseen will not be asked for."""

    path: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """The step of `path` will be asked, and this is known of it: it may be computed meanwhile.

    continues, system, model: as of `StartGeneration`. beginning: of the user turn.
    """

    path: str
    continues: str | None
    system: str | None
    beginning: str
    model: str | None


@dataclass(frozen=True, slots=True)
class StartCall:
    """Run a tool with these arguments. member: which tool of a server. cache_s: see above."""

    path: str
    tool: ToolSpec
    arguments: Mapping[str, JsonValue]
    member: str | None = None
    cache_s: float | None = None


@dataclass(frozen=True, slots=True)
class StartQuestion:
    """Ask a person. choices: empty where any text will do. show: a value to put before them."""

    path: str
    prompt: str
    choices: tuple[str, ...]
    show: JsonValue


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the work of `path`; its end is reported as `Stopped` or what it came to."""

    path: str


@dataclass(frozen=True, slots=True)
class ReleaseConversation:
    """Close the conversation of `path`, if there is one: no step will continue it."""

    path: str


@dataclass(frozen=True, slots=True)
class ExpectUse:
    """The conversation of `path` is continued in so many steps; infinity where nobody knows.

    awaits: calls and questions under way that must have ended before.
    """

    path: str
    num_steps: float
    awaits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectPrompt:
    """The step of `path` will be asked in so many steps, and its prompt begins like this.

    Takes the place of what was told of it before. It is for the run's own model. system: as of
    `StartGeneration`. beginning: of the user turn. awaits: as of `ExpectUse`.
    """

    path: str
    system: str | None
    beginning: str
    num_steps: int
    awaits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report `TimerFired` after `delay_s` seconds."""

    timer: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class StopTimer:
    """The timer is not needed any more; a report that is on its way does no harm."""

    timer: str


Command: TypeAlias = (
    StartGeneration
    | Foresee
    | GiveUp
    | Prepare
    | StartCall
    | StartQuestion
    | Stop
    | ReleaseConversation
    | ExpectUse
    | ExpectPrompt
    | StartTimer
    | StopTimer
)


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the run; the first report."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The conversation of `path` exists: what it was forked from is no longer needed by it."""

    path: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The generation of `path` is done. is_cached: an earlier one was, and nothing is written."""

    path: str
    done: GenerationDone
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    """The tool of `path` returned, or the person answered. is_cached: as of `Answered`."""

    path: str
    value: JsonValue
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The work of `path` failed."""

    path: str
    error: FlowForgeError


@dataclass(frozen=True, slots=True)
class Stopped:
    """The work of `path` was cancelled."""

    path: str


@dataclass(frozen=True, slots=True)
class PartClosed:
    """A part of what the generation of `path` writes is final, unless the whole fails.

    It decides nothing, and so no journal has it. key: of an element its index.
    """

    path: str
    key: int | str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of a timer has come."""

    timer: str


@dataclass(frozen=True, slots=True)
class CancelStep:
    """Somebody wants what runs under `path` to end: a try of a step, a branch, a call, a sample."""

    path: str


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Somebody wants the run to end."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Something happened that decides nothing: it is told, and the core never hears of it."""

    fact: Fact


Report: TypeAlias = (
    Begin
    | Opened
    | PartClosed
    | Answered
    | Returned
    | Failed
    | Stopped
    | TimerFired
    | CancelStep
    | CancelRun
)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The run has its outputs."""

    outputs: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Broken:
    """Steps failed; all of them, in the order they were found."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was cancelled before it had its outputs."""


Outcome: TypeAlias = Succeeded | Broken | Cancelled


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and to tell, each in order. outcome: set once, when nothing is in flight."""

    commands: tuple[Command, ...]
    facts: tuple[Fact, ...]
    outcome: Outcome | None
