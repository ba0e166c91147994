"""Conversations with a model that an OpenAI-compatible server runs.

The server keeps nothing: each request sends the whole conversation, and forks begin alike. Tokens
are counted by the server and known to nobody here, so a run's books have its figures and no count
of distinct prompt tokens.
"""

from __future__ import annotations

import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio.lowlevel

from flowforge.backends.protocol import (
    BackendStatistics,
    GenerationCut,
    GenerationDone,
    TextDelta,
    Usage,
)
from flowforge.backends.remote.answer import RemoteAnswer
from flowforge.backends.remote.forms import AskedForm, form_of, require_form
from flowforge.backends.remote.messages import ChatHistory
from flowforge.backends.remote.server import (
    DEFAULT_WAITING,
    RemoteServer,
    Waiting,
    client_for,
    key_of,
)
from flowforge.errors import EngineError, InternalError, WorkflowError
from flowforge.grammars.tool_formats import NamedTool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import httpx2

    from flowforge.backends.protocol import (
        GenerateRequest,
        JsonValue,
        ScoreRequest,
        ScoringDone,
        ToolOffer,
    )
    from flowforge.language.remote_models import RemoteModel
    from flowforge.language.token_meter import TokenMeter

_GOES_ON_WITH_PREFILL = ("vllm", "sglang")
_SWITCHES_THOUGHTS = ("vllm", "sglang")
_MAX_SEED = 2**31


@asynccontextmanager
async def open_remote(
    model: RemoteModel,
    *,
    meter: TokenMeter | None = None,
    waiting: Waiting = DEFAULT_WAITING,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncGenerator[RemoteBackend]:
    """The backend of one model of a server; nothing is sent yet.

    meter: counts its tokens, where its tokenizer is here. waiting, transport: for tests. Raises
    EngineError EN410.
    """
    key = key_of(model)
    async with client_for(model, transport) as client:
        server = RemoteServer(model, client, key, waiting)
        yield RemoteBackend(server, meter)


class RemoteBackend:
    """One model of one server. server: the way to it."""

    def __init__(self, server: RemoteServer, meter: TokenMeter | None = None) -> None:
        self.server = server
        self.usage = Usage()
        self._meter = meter

    @property
    def model(self) -> RemoteModel:
        """What was said of the model."""
        return self.server.model

    @property
    def name(self) -> str:
        """As steps call it, for example 'remote/big'."""
        return self.model.label

    @property
    def capacity(self) -> int | None:
        """As it was said; None where nobody said it."""
        return self.model.context_len

    @property
    def num_in_flight(self) -> int:
        """Requests that have not come to their end."""
        return self.server.num_in_flight

    @property
    def token_meter(self) -> TokenMeter:
        """That of the model's tokenizer, where it is known."""
        return self._meter or UnknownMeter(self.name)

    async def open(
        self, *, system: str | None = None, model: str | None = None
    ) -> RemoteConversation:
        """Start a conversation. Sends nothing yet. Raises WorkflowError WF512 for a model."""
        if model is not None:
            raise WorkflowError(
                "WF512",
                f"model {model!r} is asked for, and this backend has {self.name!r} alone",
                help="leave 'model' out",
            )
        await anyio.lowlevel.checkpoint()
        history = ChatHistory()
        if system is not None:
            history = history.with_text("system", system)
        return RemoteConversation(self, history)

    async def revision_of(self, model: str | None) -> str:
        """Address and name: whether the server has other weights meanwhile, nobody can tell."""
        await anyio.lowlevel.checkpoint()
        return f"{self.name if model is None else model} {self.model.url} {self.model.model}"

    def statistics(self) -> BackendStatistics:
        """As the server told; it tells nothing of pages."""
        return BackendStatistics(
            prefilled_tokens=self.usage.prefilled_tokens,
            reused_tokens=self.usage.reused_tokens,
            generated_tokens=self.usage.generated_tokens,
        )

    def count(self, usage: Usage) -> None:
        """Enter what a generation cost."""
        self.usage = Usage(
            prefilled_tokens=self.usage.prefilled_tokens + usage.prefilled_tokens,
            reused_tokens=self.usage.reused_tokens + usage.reused_tokens,
            generated_tokens=self.usage.generated_tokens + usage.generated_tokens,
        )


class UnknownMeter:
    """Counts nothing, because the tokenizer is the server's. Raises EngineError EN407."""

    def __init__(self, model: str) -> None:
        self._model = model

    def count_tokens(self, text: str) -> int:
        """See `TokenMeter`."""
        raise self._error()

    def cut_text(self, text: str, num_tokens: int) -> str:
        """See `TokenMeter`."""
        raise self._error()

    def _error(self) -> EngineError:
        return EngineError(
            "EN407",
            f"tokens of {self._model} cannot be counted here: its tokenizer is the server's",
            help='name it in the model\'s table: tokenizer = "Qwen/Qwen3-4B"',
        )


class RemoteConversation:
    """A conversation as messages; see `Conversation`. It holds no memory anywhere."""

    def __init__(self, backend: RemoteBackend, history: ChatHistory) -> None:
        self._backend = backend
        self._history = history
        self._cut: GenerationCut | None = None
        self._is_open = True

    def add_user(self, text: str) -> None:
        """See `Conversation.add_user`."""
        self._history = self._history.with_text("user", text)

    def add_assistant(self, text: str) -> None:
        """See `Conversation.add_assistant`."""
        self._history = self._history.with_text("assistant", text)

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """See `Conversation.add_results`."""
        self._history = self._history.with_results(results)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """See `Conversation.add_written`; a server goes on from texts."""
        history = self._history.with_tools(offer)
        self._history = history.with_answer(written.text, written.calls)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        """See `Conversation.expect_use`; the server cannot be told."""

    async def fork(self) -> RemoteConversation:
        """See `Conversation.fork`."""
        self._require_open()
        await anyio.lowlevel.checkpoint()
        return RemoteConversation(self._backend, self._history)

    async def close(self) -> None:
        """See `Conversation.close`."""
        self._is_open = False
        await anyio.lowlevel.checkpoint()

    def take_cut(self) -> GenerationCut | None:
        """See `Conversation.take_cut`. What a server spent on a cut answer it does not tell."""
        cut, self._cut = self._cut, None
        return cut

    async def score(self, request: ScoreRequest) -> ScoringDone:
        """Raises EngineError EN407: chat servers write, and weigh no given text."""
        await anyio.lowlevel.checkpoint()
        raise self._cannot("weigh given texts", "let it choose one: gen: { choice: [a, b] }")

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """See `Conversation.generate`. Raises EngineError EN401 to EN409."""
        self._require_open()
        started_at = time.monotonic()
        backend, model = self._backend, self._backend.model
        self._cut = None
        form = form_of(request, model)
        history = _with_words(self._history.with_tools(request.offer), form.words)
        body = self._body(request, history, form)
        answer = RemoteAnswer(backend.name)
        first_at: float | None = None
        is_whole = False
        try:
            if request.prefill:
                yield TextDelta(request.prefill, 0)
            chunks = backend.server.chunks(body, request.tell)
            async with aclosing(chunks):
                async for chunk in chunks:
                    for delta in answer.deltas(chunk):
                        first_at = first_at or time.monotonic()
                        is_late = form.is_shown_late and not delta.is_thought
                        yield replace(delta, text="") if is_late else delta
            reason = answer.ending()
            calls = answer.calls() if reason == "stop" else ()
            text = form.taken_out(answer.text)
            if form.is_shown_late and text:
                yield TextDelta(text, 0)
            if reason == "stop":
                require_form(request, text, calls, backend.name)
            is_whole = True
        finally:
            now = time.monotonic()
            usage = answer.usage((first_at or now) - started_at, now - started_at)
            backend.count(usage)
            if not is_whole:
                self._cut = GenerationCut(usage)
        text = request.prefill + text
        self._history = history.with_answer(text, calls)
        yield GenerationDone(
            text,
            reason,
            usage,
            calls=calls,
            cuts_call=reason == "length" and answer.has_calls,
            mean_logprob=self._mean_logprob(request, answer),
        )

    def _body(
        self, request: GenerateRequest, history: ChatHistory, form: AskedForm
    ) -> dict[str, JsonValue]:
        model = self._backend.model
        messages: list[JsonValue] = [*history.messages]
        body: dict[str, JsonValue] = {
            "model": model.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling(request),
            **self._tools(request, history),
            **form.fields,
        }
        if request.prefill:
            if model.dialect not in _GOES_ON_WITH_PREFILL:
                raise self._cannot("go on from a 'prefill'", "leave 'prefill' out of the step")
            messages.append({"role": "assistant", "content": request.prefill})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if model.dialect in _SWITCHES_THOUGHTS:
            thinks = request.options.think is not None
            body["chat_template_kwargs"] = {"enable_thinking": thinks}
        elif request.options.think is not None:
            raise self._cannot("be told to think", "leave 'think' out of the step")
        if request.with_logprob:
            body["logprobs"] = True
        return body

    def _sampling(self, request: GenerateRequest) -> dict[str, JsonValue]:
        sampling, model = request.sampling, self._backend.model
        told: dict[str, JsonValue] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": None if sampling.seed is None else sampling.seed % _MAX_SEED,
            "stop": [*sampling.stop] or None,
        }
        if sampling.top_k is not None and model.dialect == "openai":
            raise self._cannot("sample by 'top_k'", "leave 'top_k' out, or say its 'dialect'")
        if sampling.max_tokens is not None:
            # Thoughts are no part of what a step's max_tokens is about.
            most = sampling.max_tokens + (request.options.think or 0)
            # OpenAI's own newer models take no other name, most other servers know only this one.
            is_openai = (urlsplit(model.url).hostname or "").endswith("openai.com")
            told["max_completion_tokens" if is_openai else "max_tokens"] = most
        return {name: value for name, value in told.items() if value is not None}

    def _tools(self, request: GenerateRequest, history: ChatHistory) -> dict[str, JsonValue]:
        if not history.tools:
            return {}
        tools: list[JsonValue] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in history.tools
        ]
        offer = request.offer
        if offer is None or offer.choice == "none":
            return {"tools": tools, "tool_choice": "none"}
        choice: JsonValue = (
            {"type": "function", "function": {"name": offer.choice.name}}
            if isinstance(offer.choice, NamedTool)
            else offer.choice
        )
        told: dict[str, JsonValue] = {"tools": tools, "tool_choice": choice}
        if offer.max_calls == 1:
            told["parallel_tool_calls"] = False
        return told

    def _mean_logprob(self, request: GenerateRequest, answer: RemoteAnswer) -> float | None:
        if not request.with_logprob:
            return None
        if not answer.logprobs:
            raise self._cannot(
                "say how likely its answers are", "pick by a vote or a score: pick: majority"
            )
        return sum(answer.logprobs) / len(answer.logprobs)

    def _cannot(self, what: str, help: str) -> EngineError:
        model = self._backend.model
        message = f"{model.label} cannot {what} (dialect {model.dialect!r})"
        return EngineError("EN407", message, help=help)

    def _require_open(self) -> None:
        if not self._is_open:
            raise InternalError("IN510", "a closed conversation was used")


def _with_words(history: ChatHistory, words: str) -> ChatHistory:
    """The history in which the model has been told of the form, in the user's last turn."""
    if not words:
        return history
    *before, last = history.messages
    content = last.get("content")
    if last["role"] != "user" or not isinstance(content, str):
        return history.with_text("user", words)
    told = {**last, "content": f"{content}\n\n{words}"}
    return replace(history, messages=(*before, told))
