"""One request on the engine: its prompt computed once, and a fork of it for each choice.

What is not sound is refused before anything is computed (`prepare`), so that a stream that has
begun fails for the engine's reasons only.
"""

from __future__ import annotations

import secrets
import string
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from flowforge.backends.answer_reader import AnswerEnd, AnswerReader
from flowforge.backends.protocol import GenerateRequest, Sampling
from flowforge.engine.sequence import GenerationFinished, GenerationRequest
from flowforge.serving.failures import bad_request
from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from flowforge.backends.engine import EngineBackend
    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.handle import EngineSequence
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.sampling import SamplingParams, TokenLogprobs
    from flowforge.engine.sequence import GenerationUsage, TokensArrived
    from flowforge.grammars.tool_formats import CompiledTools, ToolCall

    Taker: TypeAlias = Callable[["Piece | End"], Awaitable[None]]
    """Takes what choices write; called for several at the same time."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]

_ID_SIGNS = string.ascii_letters + string.digits
_ID_CHARS = 9


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the engine.

    prompt_ids: at least one. form: the answer's form, tools and stops. params: for the first
    choice; the others are branches of it. num_choices: at least 1. namespace: who may share KV.
    scores_prompt: whether the prompt's tokens come with their log probabilities. strict_tools:
    those whose calls must be held to their whole schemas. prompt_field, length_field: of the
    request, for what does not fit.
    """

    prompt_ids: tuple[int, ...]
    form: GenerateRequest
    params: SamplingParams
    num_choices: int
    namespace: Namespace
    scores_prompt: bool = False
    writes_nothing: bool = False
    strict_tools: frozenset[str] = frozenset()
    prompt_field: str = "prompt"
    length_field: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class CallWritten:
    """A call of a choice, whole. idx: among the choice's calls, from 0."""

    idx: int
    id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain of one choice: text, whole calls, and the tokens since the last piece.

    Where no log probabilities are asked for, `logprobs` is empty.
    """

    choice: int
    text: str
    calls: tuple[CallWritten, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The last of one choice. num_tokens: that it wrote."""

    choice: int
    reason: FinishReason
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request cost, in tokens. cached_tokens: of the prompt, those that were not computed.

    It rises while the request is under way.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def as_usage(self) -> dict[str, object]:
        """As the API tells it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Generation:
    """A request that is sound and has not begun. Made by `prepare`; run once.

    begun: called once the prompt's tokens are scored, before anything is written.
    """

    def __init__(
        self,
        backend: EngineBackend,
        asked: Asked,
        tools: CompiledTools | None,
        constraint: TokenConstraint | None,
    ) -> None:
        self._backend = backend
        self._asked = asked
        self._tools = tools
        self._constraint = constraint
        self.cost = Cost(prompt_tokens=len(asked.prompt_ids))
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self.begun: Callable[[], Awaitable[None]] | None = None

    async def run(self, take: Taker, rest_s: Callable[[], float]) -> None:
        """Generate all choices side by side; `take` gets what each writes, as it comes.

        take: may be slow; what comes meanwhile is taken together. rest_s: as of
        `EngineSequence.generate`. Nothing is held when this returns
        or raises, also when it is cancelled: that ends the generation before the next step.
        """
        asked = self._asked
        first, rest = asked.prompt_ids[:1], asked.prompt_ids[1:]
        known = first if asked.scores_prompt else asked.prompt_ids
        sequence = self._backend.engine.open(known, namespace=asked.namespace)
        try:
            if asked.scores_prompt and rest:
                num_top = asked.params.num_logprobs or 0
                self.prompt_logprobs = await sequence.score(rest, num_top=num_top)
            if self.begun is not None:
                await self.begun()
            if asked.writes_nothing:
                for choice in range(asked.num_choices):
                    await take(End(choice, "length", 0))
                return
            if asked.num_choices == 1:
                await self._write(sequence, 0, take, rest_s)
            else:
                await self._write_forks(sequence, take, rest_s)
        finally:
            await sequence.close()

    async def _write_forks(
        self, sequence: EngineSequence, take: Taker, rest_s: Callable[[], float]
    ) -> None:
        usage = await sequence.prefill()
        self._count_prompt(usage)

        async def write(choice: int) -> None:
            fork = await sequence.fork()
            try:
                await self._write(fork, choice, take, rest_s)
            finally:
                await fork.close()

        try:
            async with anyio.create_task_group() as tasks:
                for choice in range(self._asked.num_choices):
                    tasks.start_soon(write, choice)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _write(
        self, sequence: EngineSequence, choice: int, take: Taker, rest_s: Callable[[], float]
    ) -> None:
        writer = _ChoiceWriter(self._backend, self._asked, self._tools, choice)
        updates = sequence.generate(self._request(choice), rest_s)
        async with aclosing(updates):
            async for update in updates:
                if isinstance(update, GenerationFinished):
                    if self._asked.num_choices == 1:
                        self._count_prompt(update.usage)
                    self.cost += Cost(completion_tokens=update.usage.output_tokens)
                    for told in writer.finish(update):
                        await take(told)
                else:
                    piece = writer.push(update)
                    if piece is not None:
                        await take(piece)

    def _count_prompt(self, usage: GenerationUsage) -> None:
        if self._asked.scores_prompt:
            return  # it was computed for its scores, and what follows finds it there
        self.cost = replace(self.cost, cached_tokens=usage.reused_tokens)

    def _request(self, choice: int) -> GenerationRequest:
        stops, constraint = self._asked.form.sampling.stop, self._constraint
        return GenerationRequest(
            replace(self._asked.params, branch=choice),
            constraint=None if constraint is None else constraint.fork(),
            stop=AnswerEnd(self._backend.tokenizer, stops, None, None) if stops else None,
        )


async def prepare(backend: EngineBackend, asked: Asked) -> Generation:
    """Check a request and compile what holds its answers to their form.

    Raises RequestError 400 for what does not fit the context and for strict tools that no mask
    holds, WorkflowError WF4xx for a form or tools that cannot be held to.
    """
    _require_room(backend, asked)
    rest = list(asked.prompt_ids)
    tools = await backend.tools(asked.form, rest)
    _require_strict(asked, tools)
    constraint = await backend.constraints.start(asked.form, tools)
    return Generation(backend, asked, tools, constraint)


def with_stops(form: GenerateRequest, stops: tuple[str, ...]) -> GenerateRequest:
    """The form, and strings that end the text."""
    return replace(form, sampling=Sampling(stop=stops))


def _require_room(backend: EngineBackend, asked: Asked) -> None:
    prompt_len, capacity = len(asked.prompt_ids), backend.capacity
    wanted = asked.params.max_tokens
    least = 0 if asked.writes_nothing else wanted or 1
    if prompt_len + least <= capacity:
        return
    told = f"the prompt has {prompt_len:,} tokens"
    if wanted is not None and not asked.writes_nothing:
        told += f" and {wanted:,} more may be written"
    raise bad_request(
        f"the model's context has room for {capacity:,} tokens, and {told}; shorten it "
        "or ask for fewer tokens",
        asked.prompt_field if prompt_len >= capacity else asked.length_field,
        "context_length_exceeded",
    )


def _require_strict(asked: Asked, tools: CompiledTools | None) -> None:
    loose = () if tools is None else tools.loose
    wrong = next((one for one in loose if one.tool in asked.strict_tools), None)
    if tools is None or wrong is None:
        return
    names = [tool.name for tool in tools.request.tools]
    what = f"{wrong.name!r} of tool {wrong.tool!r}" if wrong.name else f"tool {wrong.tool!r}"
    raise bad_request(
        f"{what} cannot be held to its schema: {wrong.reason}; leave that out, or do not ask for "
        '"strict"',
        f"tools[{names.index(wrong.tool)}].function.parameters",
        "WF421",
    )


class _ChoiceWriter:
    """Reads what one choice writes."""

    def __init__(
        self, backend: EngineBackend, asked: Asked, tools: CompiledTools | None, choice: int
    ) -> None:
        self._choice = choice
        self._eos_ids = backend.tokenizer.eos_ids
        self._reader = AnswerReader(
            backend.tokenizer,
            stop=asked.form.sampling.stop,
            tools=tools,
            may_be_text=asked.form.may_take_form,
        )
        self._calls: list[CallWritten] = []
        self._waiting: list[TokenLogprobs] = []

    def push(self, update: TokensArrived) -> Piece | None:
        """What became certain; None if nothing did. Its tokens come with what does."""
        text = self._reader.push(update.token_ids)
        # An end of the turn is no part of what it says.
        self._waiting += (one for one in update.logprobs if one.token_id not in self._eos_ids)
        return self._piece(text)

    def finish(self, finished: GenerationFinished) -> list[Piece | End]:
        """What was held back, if anything was, and the end."""
        piece = self._piece(self._reader.finish(), is_last=True)
        end = End(self._choice, self._reason(finished), finished.usage.output_tokens)
        return [end] if piece is None else [piece, end]

    def _piece(self, text: str, *, is_last: bool = False) -> Piece | None:
        new = tuple(
            CallWritten(idx, call.call_id or _new_id(), call)
            for idx, call in enumerate(self._reader.calls)
            if idx >= len(self._calls)
        )
        self._calls += new
        if not text and not new and not (is_last and self._waiting):
            return None
        logprobs, self._waiting = tuple(self._waiting), []
        return Piece(self._choice, text, new, logprobs)

    def _reason(self, finished: GenerationFinished) -> FinishReason:
        if finished.reason == "length" or self._reader.cuts_call:
            return "length"
        return "tool_calls" if self._calls else "stop"


def _new_id() -> str:
    """Nine letters and digits: some templates insist, when the call comes back."""
    return "".join(secrets.choice(_ID_SIGNS) for _ in range(_ID_CHARS))
