"""The one shape of everything a step's tokens can come from.

A `Backend` opens conversations; a `Conversation` is a prefix that can be forked, continued,
generated from and scored on. The engine, remote servers and the scripted backend of tests all have
this shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from flowforge.language.answer_specs import PLAIN_OPTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from flowforge.backends.notices import Notice
    from flowforge.grammars.tool_formats import ToolCall, ToolChoice, ToolDefinition
    from flowforge.language.answer_specs import AnswerOptions, GrammarSpec
    from flowforge.language.token_meter import TokenMeter

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
FinishReason = Literal["stop", "length", "closed"]
"""Why an answer ended: by itself, cut at max_tokens, or closed before it would have been cut."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; `None` leaves the backend's default.

    temperature 0 is greedy. seed: the same seed gives the same tokens, whatever else runs.
    stop: the text ends before the first of these strings.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """What the model may call in a turn. max_calls: in this turn, at least one.

    choice: whether it must ("required", or one named), may ("auto") or must not ("none") call.
    """

    tools: tuple[ToolDefinition, ...]
    choice: ToolChoice = "auto"
    max_calls: int = 16


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn for the model to write.

    json_schema: the text must be JSON valid under it. choice: it must be exactly one of these.
    regex: all of it must match. grammar: it must be a text of the grammar. At most one of the four
    is given. options: how strictly the text is held to it, and whether thoughts come before it,
    which max_tokens and stop do not concern. A choice
    with `scoring: exact` is for `Conversation.score` and never comes here.
    offer: tools that the model is told of and may call; under "auto" the answer is then calls and
    nothing beside them, or a text of the form.
    priority: higher goes first where requests wait for each other. num_following: tokens that the
    run may write after this, in the longest chain of its steps; of equal priority more goes first.
    prefill: how the text begins; the model goes on from there, and the result includes it.
    label: who asks, for example the step path 'explore[1]/draft'; a backend may show it in
    messages and a script answers by it, but it never changes what a model writes.
    with_logprob: whether the end is to say how likely the model found what it wrote; forced tokens
    are then computed one by one. `written` is empty.
    written: output tokens of this very request from an earlier generation that was cut; the model
    goes on behind them and comes to what it would have come to. They count as generated, and are
    the first delta.
    tags, run_key: words of its step, and what all requests of one run have in common, for who
    chooses between backends. tell: hears what happens to the request on its way, beside its text,
    until its conversation is closed.
    """

    sampling: Sampling = field(default_factory=Sampling)
    json_schema: Mapping[str, JsonValue] | bool | None = None
    choice: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: GrammarSpec | None = None
    options: AnswerOptions = PLAIN_OPTIONS
    offer: ToolOffer | None = None
    prefill: str = ""
    priority: int = 0
    num_following: int = field(default=0, compare=False)
    label: str = ""
    with_logprob: bool = False
    written: tuple[int, ...] = ()
    tags: tuple[str, ...] = field(default=(), compare=False)
    run_key: str = field(default="", compare=False)
    tell: Callable[[Notice], None] | None = field(default=None, compare=False, repr=False)

    @property
    def has_form(self) -> bool:
        """Whether the answer must have a form."""
        forms = (self.json_schema, self.choice, self.regex, self.grammar)
        return any(form is not None for form in forms)

    @property
    def may_call(self) -> bool:
        """Whether the answer may call tools."""
        return self.offer is not None and self.offer.choice != "none"

    @property
    def may_take_form(self) -> bool:
        """Whether the answer must have its form if it calls nothing, which it may."""
        is_free_to = self.offer is None or self.offer.choice in ("auto", "none")
        return self.has_form and is_free_to


@dataclass(frozen=True, slots=True)
class Usage:
    """What one generation cost, in tokens and seconds.

    prompt_tokens: length of the whole prompt. prefilled_tokens: prompt tokens this generation
    computed. reused_tokens: prompt tokens whose KV was there already, so that
    prompt = prefilled + reused. generated_tokens: output tokens, forced ones included.
    ttft_s: from the request to its first token. total_s: from the request to the end.
    forced_tokens: output tokens that a constraint left no choice about, and so were not sampled.
    """

    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    forced_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became certain; `num_tokens` output tokens arrived since the last delta.

    token_ids: of those tokens, where the backend knows them. is_thought: whether the model thought
    it before its answer, of which it is no part.
    """

    text: str
    num_tokens: int
    token_ids: tuple[int, ...] = ()
    is_thought: bool = False


@dataclass(frozen=True, slots=True)
class GenerationDone:
    """The last item of every generation: the whole text, why it ended, what it cost.

    calls: the tools that the model calls, in order; the text is what it says beside them.
    cuts_call: whether max_tokens ended it within a call, or before one that it owed.
    prompt_ids, output_ids: the exact tokens, where the backend knows them; else None.
    num_written: output tokens whose KV decoding wrote; None where unknown (all but the last then).
    mean_logprob: how likely the model found what it wrote, where that was asked for: the mean over
    the output tokens of the natural logarithm of their probability, as the model itself has it.
    parsed: the value of an answer under a grammar; for whoever runs the generation to set.
    num_restored: output tokens that were given by `GenerateRequest.written`, the first ones: they
    were computed as a prompt is, and num_written does not count them.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    num_written: int | None = None
    num_restored: int = 0
    calls: tuple[ToolCall, ...] = ()
    cuts_call: bool = False
    mean_logprob: float | None = None
    parsed: JsonValue = None

    @property
    def was_weighed(self) -> bool:
        """Whether the text was chosen by its score, so that no token of it was generated."""
        is_said = bool(self.text) and not self.calls
        return is_said and not self.output_ids and self.usage.generated_tokens == 0

    def as_cut(self) -> GenerationCut:
        """What it cost, for the books, where its answer reaches nobody; without what was given."""
        num_given = self.num_restored
        usage = replace(self.usage, generated_tokens=self.usage.generated_tokens - num_given)
        prompt_ids, output_ids = self.prompt_ids, self.output_ids
        if prompt_ids is not None and output_ids is not None:
            prompt_ids, output_ids = prompt_ids + output_ids[:num_given], output_ids[num_given:]
        return GenerationCut(usage, prompt_ids, output_ids, self.num_written)


@dataclass(frozen=True, slots=True)
class GenerationCut:
    """What a generation cost that was stopped or failed before its end.

    usage: tokens generated so far count, also those that nobody was handed. prompt_ids: as many of
    the prompt's tokens as were computed or reused; output_ids, num_written: as in GenerationDone.
    """

    usage: Usage
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    num_written: int | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Texts to weigh as the next assistant turn; at least one, none of them twice.

    priority, label: as for GenerateRequest.
    """

    texts: tuple[str, ...]
    priority: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """How likely the model found a text as its whole turn.

    logprob: natural logarithm of the probability that it writes exactly this and ends there.
    num_tokens: of the text, its end included.
    """

    text: str
    logprob: float
    num_tokens: int

    @property
    def mean_logprob(self) -> float:
        """The logarithm a token, by which texts of different lengths compare."""
        return self.logprob / self.num_tokens


@dataclass(frozen=True, slots=True)
class ScoringDone:
    """scores: one a text, in their order.

    usage: prompt_tokens counts the prompt and each distinct token of the texts behind it; nothing
    is generated. prompts: the exact tokens of the prompt with each text, where the backend knows
    them; else None.
    """

    scores: tuple[Score, ...]
    usage: Usage
    prompts: tuple[tuple[int, ...], ...] | None = None


class Conversation(Protocol):
    """A prefix held by a backend. One owner; `close` gives its memory back and is idempotent."""

    def add_user(self, text: str) -> None:
        """Append a user turn. `text` is content: it never becomes a control token."""
        ...

    def add_assistant(self, text: str) -> None:
        """Append an assistant turn that no model wrote, as in an example; content like a user's."""
        ...

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """Append the results of the calls of the last turn, in their order; content like a user's.

        Raises ValueError when there are not as many as calls.
        """
        ...

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """Append the turn that a model wrote in an earlier process, as `generate` left it.

        written: with its output_ids, where this backend knows tokens. prefill, offer: of its
        request.
        Computes nothing yet. Raises EngineError EN707 when the prompt has other tokens than it had.
        """
        ...

    def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """Let the model write the next assistant turn, which joins the conversation when done.

        Closing the generator (`aclose`) early cancels the generation and leaves the conversation
        as it was; so does cancelling the task that awaits its next item.
        """
        ...

    def take_cut(self) -> GenerationCut | None:
        """What the last generation cost if it did not come to its end; told once."""
        ...

    async def score(self, request: ScoreRequest) -> ScoringDone:
        """Say how likely the model would write each of some texts next; nothing joins."""
        ...

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        """Say in how many steps of its program the conversation is continued or forked.

        Infinity where nobody knows. ready_in_s: in how many seconds that is expected to be, where a
        tool or a person is waited for; of equal steps it decides. A backend that is short of memory
        gives up first what is needed last; no result depends on it.
        """
        ...

    async def fork(self) -> Conversation:
        """A second conversation with the same history, sharing its KV copy-on-write."""
        ...

    async def close(self) -> None:
        """Let the prefix go; safe to call twice and under cancellation."""
        ...


@dataclass(frozen=True, slots=True)
class BackendStatistics:
    """Counters since the backend was opened; zeros where a backend cannot know.

    page_map: what each page is used for, where somebody looks: see `page_maps`.
    """

    prefilled_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    pages_held: int = 0
    pages_peak: int = 0
    page_map: str = ""


class Backend(Protocol):
    """Where conversations are opened. Opened and closed by whoever made it, not by a run."""

    @property
    def name(self) -> str:
        """How messages and events call it, for example 'engine'."""
        ...

    @property
    def capacity(self) -> int | None:
        """Tokens that prompt and answer may have together on the backend's own model, if known."""
        ...

    @property
    def token_meter(self) -> TokenMeter:
        """How the backend's own model counts texts, for expressions that count tokens."""
        ...

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """Start a conversation; without `system` the model's template may add its own default.

        model: another one than the backend's own, for this conversation and its forks. Raises
        WorkflowError WF512 where a backend has only its own, EngineError when it cannot be had.
        """
        ...

    def statistics(self) -> BackendStatistics:
        """A snapshot; cheap, callable at any time."""
        ...
