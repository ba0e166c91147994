"""The facts of a run, in order: what the terminal, JSON lines, recorders and tests all read.

Every event is frozen and numbered; a stream starts with `RunStarted` and always ends with exactly
one of `RunFinished`, `RunFailed` and `RunCancelled`. A run that was resumed has the events of its
earlier processes first, without their texts, then `RunResumed`.

Paths name step instances: `explore[1]/draft` is step `draft` in branch 1 of `explore`. The second
try of a step is `draft#2`. Each sample of a `gen` with n > 1 starts and ends as `draft[0]`,
`draft[1]` … inside `draft`. Every `StepStarted` has exactly one end: `StepFinished`, `StepFailed`,
`StepCancelled` or `StepRetried`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.notices import PromptPart
    from flowforge.backends.protocol import FinishReason, JsonValue, Usage


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first event.

    workflow: its name. inputs: as given, defaults filled in. seed: the same seed, inputs and
    answers give the same run.
    """

    workflow: str
    inputs: Mapping[str, JsonValue]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The run goes on in another process. num_kept: works whose results were taken over.

    interrupted: paths of the works that the earlier process had begun and not ended; they go on,
    and their start is not told again.
    """

    num_kept: int
    interrupted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step instance began.

    verb: what it does, as `gen` or `for`. continues: path of the conversation it forks, if any.
    """

    path: str
    verb: str
    continues: str | None = None


@dataclass(frozen=True, slots=True)
class StepSkipped:
    """A step never starts and its value is null: its `when` is false, or what it continues was."""

    path: str


@dataclass(frozen=True, slots=True)
class StepText:
    """Text a `gen` step wrote since its last `StepText`.

    text: what has become certain. num_tokens: output tokens since then. is_thought: whether the
    model thought it before its answer, of which it is no part.
    """

    path: str
    text: str
    num_tokens: int
    is_thought: bool = False


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the JSON that a `gen` step writes is final, the rest still to come.

    The whole may still break its schema or be cut. Kept no longer than texts are.
    key: the index of an element of its array, or the key of a value of its object. value: of the
    element or key.
    """

    path: str
    key: int | str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class StepAsked:
    """A step waits for a person.

    prompt: the question. choices: empty where any text will do. show: what to look at beside it.
    """

    path: str
    prompt: str
    choices: tuple[str, ...] = ()
    show: JsonValue = None


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A model calls a tool.

    A function or a tool of a server has a `StepStarted` and its end under the same path, the steps
    of a workflow have theirs below it.
    path: of the call, STEP/TOOL[k], k counting the calls of the step. tool: its name. arguments: as
    the model wrote them.
    """

    path: str
    tool: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A call of a model has come to its end.

    path: of the call, as in `ToolCalled`. tool: its name. result: as the model is told it.
    is_error: whether the call failed.
    """

    path: str
    tool: str
    result: JsonValue
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class StepCached:
    """What a step asks for was done before, and the result is taken: its end follows."""

    path: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step instance has its value.

    value: what `${ step }` gives. finish_reason, usage: where a model wrote it.
    """

    path: str
    value: JsonValue
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step instance failed, and nothing caught it."""

    path: str
    code: str
    message: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class StepRetried:
    """A try of a step failed, and another one follows.

    One that is cancelled before it starts has a `StepCancelled` and no `StepStarted`.
    next_path: of the next try. delay_s: seconds until it starts.
    """

    path: str
    code: str
    message: str
    help: str | None
    next_path: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class StepCaught:
    """A step's last try failed and its `catch` takes over; the step's end is still to come."""

    path: str
    code: str
    message: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class StepCancelled:
    """A step instance was stopped before its end: something else failed, won or was cancelled."""

    path: str


@dataclass(frozen=True, slots=True)
class PagesSampled:
    """What the KV pages were used for a moment ago.

    Told beside other events, at most once a second, by runs that somebody may watch.
    page_map: as `backends.page_maps` writes it.
    """

    page_map: str


@dataclass(frozen=True, slots=True)
class StepPrompted:
    """A model is asked, and this is what it reads behind the conversation that the step continues.

    Told by backends that make prompts themselves, once a turn.
    parts: in order, each a kind ("special" for a control token, "template" for other words of the
    model's chat template, "content" for what a message says) and its text.
    """

    path: str
    parts: tuple[PromptPart, ...]


@dataclass(frozen=True, slots=True)
class RequestDelayed:
    """A server did not take a step's request, and is asked again.

    model: `remote/NAME`. code: of the error that it would otherwise be. reason: its message.
    wait_s: seconds until it is asked again. attempt: of this request, counted from 1.
    """

    path: str
    model: str
    code: str
    reason: str
    wait_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class StepRouted:
    """A route sends a step's request to a model; told again when it goes to the next one.

    route: its name. model: which one it is. reason: 'rule 1', 'weight', 'load' or 'fallback', with
    what led to it.
    """

    path: str
    route: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShadowEnded:
    """A second model has answered a step's request beside the first; nobody saw its answer.

    route: its name. model: the second one. similarity: of the two answers, 1 where they are the
    same. usage, finish_reason: of the second answer. code: of what it failed with; the three before
    are then absent.
    """

    path: str
    route: str
    model: str
    similarity: float | None = None
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class ModelAccounting:
    """What a run cost on one model.

    model: absent for the run's own. prefilled_tokens, reused_tokens, generated_tokens,
    unique_prompt_tokens, cut_tokens: as in `Accounting`, on this model.
    """

    model: str | None
    prefilled_tokens: int
    reused_tokens: int
    generated_tokens: int
    unique_prompt_tokens: int | None
    cut_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Accounting:
    """What a run cost.

    prefilled_tokens: prompt tokens that were computed. reused_tokens: prompt tokens whose KV was
    there already. generated_tokens: output tokens, forced ones included. unique_prompt_tokens:
    distinct prompt tokens, counted from the prompts alone: where nothing is computed twice, as many
    as prefilled_tokens; absent where a backend does not tell its prompts. pages_peak: the most KV
    pages that were held at a time. pages_total: all that there are. duration_s: seconds, of all its
    processes together. cut_tokens: of the generated ones, those of generations that were stopped or
    failed. models: the same for each model, in the order of their first use, when a run used
    several; else empty.
    """

    prefilled_tokens: int
    reused_tokens: int
    generated_tokens: int
    unique_prompt_tokens: int | None
    pages_peak: int
    pages_total: int
    duration_s: float
    cut_tokens: int = 0
    models: tuple[ModelAccounting, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run has its outputs.

    outputs: by their names, or what a flow returned.
    """

    outputs: Mapping[str, JsonValue]
    accounting: Accounting


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run ended by failures.

    failures: one for each step that failed, with its path, code, message and help.
    """

    failures: tuple[StepFailed, ...]
    accounting: Accounting


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """The run was cancelled from outside."""

    accounting: Accounting


Fact: TypeAlias = (
    RunStarted
    | RunResumed
    | StepStarted
    | StepSkipped
    | StepText
    | StepPart
    | StepAsked
    | ToolCalled
    | ToolReturned
    | StepCached
    | StepFinished
    | StepFailed
    | StepRetried
    | StepCaught
    | StepCancelled
    | PagesSampled
    | StepPrompted
    | RequestDelayed
    | StepRouted
    | ShadowEnded
    | RunFinished
    | RunFailed
    | RunCancelled
)


@dataclass(frozen=True, slots=True)
class Event:
    """A fact with its place in the stream. seq counts from 0; time_s is seconds since the start."""

    seq: int
    time_s: float
    fact: Fact
