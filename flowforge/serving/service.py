"""A model as clients may ask it: from a request that was read to what its answer is made of."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from flowforge.backends.hooks import NO_HOOKS, Blocked, Prompted, SeenTurn, Written
from flowforge.errors import FlowForgeError
from flowforge.grammars.compilation import GrammarLate
from flowforge.grammars.lark.interruption import Interrupted
from flowforge.serving.admission import Admission
from flowforge.serving.completions import Echo
from flowforge.serving.envelope import Envelope
from flowforge.serving.event_stream import EventStream, run_unless_gone
from flowforge.serving.failures import (
    Failure,
    RequestError,
    bad_request,
    failure_of,
    not_found,
    told_back,
)
from flowforge.serving.forms import form_field_of, form_of
from flowforge.serving.generation import Asked, prepare, with_stops
from flowforge.serving.metrics import Metrics, ServerCounts
from flowforge.serving.pace import Pace
from flowforge.serving.prompts import offer_of, prompt_of
from flowforge.serving.pulse import Pulse
from flowforge.serving.sampling import biased_ids, sampling_of
from flowforge.serving.tenants import namespace_of
from flowforge.serving.token_texts import TokenTexts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from starlette.requests import Request

    from flowforge.backends.engine import EngineBackend
    from flowforge.backends.hooks import Hooks, SeenRole
    from flowforge.backends.protocol import GenerateRequest, JsonValue
    from flowforge.serving.event_stream import Body
    from flowforge.serving.generation import Generation
    from flowforge.serving.keys import Key, KeyRing
    from flowforge.serving.recording import Recorder
    from flowforge.serving.requests import (
        ChatMessage,
        ChatRequest,
        CompletionRequest,
        SamplingFields,
    )
    from flowforge.serving.settings import ServerSettings

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks. path: of the request, as its route."""

    key: Key
    path: str


class Service:
    """One model and all that its server knows. Lives on the server's event loop."""

    def __init__(
        self,
        backend: EngineBackend,
        settings: ServerSettings,
        keys: KeyRing,
        *,
        hooks: Hooks = NO_HOOKS,
        recorder: Recorder | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.keys = keys
        self.hooks = hooks
        self.recorder = recorder
        self.admission = Admission(settings.limits)
        self.pace = Pace(self.admission)
        self.counts = ServerCounts()
        self.texts = TokenTexts(backend.tokenizer)
        self.started_at = int(time.time())
        self.pulse = Pulse(backend.engine, settings.waits.stall_s)
        self.metrics = Metrics(
            settings.names[0],
            backend.engine.statistics,
            self.counts,
            self.pulse,
            lambda: self.admission.num_active,
        )
        self._cut = anyio.Event()
        told = f"{backend.tokenizer.fingerprint} {backend.engine.vocab_size} {settings.names[0]}"
        self._fingerprint = f"fp_{blake2b(told.encode(), digest_size=5).hexdigest()}"

    def require_model(self, name: str | None) -> None:
        """Raises RequestError 404 for a model that is not this one."""
        names = self.settings.names
        if name is not None and name not in names:
            known = " and ".join(map(repr, names))
            raise not_found(
                f"the model {told_back(name)!r} does not exist here, there is {known}",
                "model_not_found",
                "model",
            )

    def envelope(self, prefix: str) -> Envelope:
        """For one answer."""
        return Envelope(
            f"{prefix}-{secrets.token_hex(12)}",
            int(time.time()),
            self.settings.names[0],
            self._fingerprint,
        )

    def stream(self, write: Body) -> EventStream:
        """A response that `write` writes."""
        return EventStream(write, self.settings.waits, self._cut, self.log_failure)

    def stream_to_its_end(self, write: Body) -> EventStream:
        """A response that nothing cuts: what it tells of is cut, and it has a last event."""
        return EventStream(write, self.settings.waits, anyio.Event(), self.log_failure)

    async def unless_gone(self, request: Request, work: Callable[[], Awaitable[T]]) -> T:
        """See `event_stream.run_unless_gone`."""
        return await run_unless_gone(request.receive, self._cut, work)

    def cut(self) -> None:
        """Wait no longer for requests that are under way."""
        self._cut.set()

    def log_failure(self, error: Exception) -> None:
        """Log what the server is to blame for, with its place; a refusal has none."""
        failure = failure_of(error)
        if failure.status >= 500 and not isinstance(error, RequestError):
            _logger.error("a request failed: %s", failure.message, exc_info=error)

    # -- chats ------------------------------------------------------------------------------------

    async def chat(
        self, request: ChatRequest, client: Client, annotations: dict[str, JsonValue]
    ) -> Generation:
        """A chat, sound and ready to begin.

        Raises RequestError, WorkflowError and EngineError, as `failures.failure_of` tells them.
        """
        self.require_model(request.model)
        most = request.max_completion_tokens or request.max_tokens
        offer = offer_of(request)
        form = replace(form_of(request), offer=offer)
        messages = await self._seen_messages(request.messages, client, annotations)
        render = partial(
            prompt_of,
            self.backend,
            messages,
            offer,
            continues_last=bool(request.continue_final_message),
        )
        num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
        with self._refusing(request, "messages"):
            # A long prompt takes long, and others are being answered.
            prompt = await anyio.to_thread.run_sync(render)
            asked = self._asked(request, client, tuple(prompt), form, most, num_logprobs)
            asked = replace(
                asked,
                strict_tools=request.strict_tools,
                prompt_field="messages",
                length_field="max_completion_tokens"
                if request.max_completion_tokens
                else "max_tokens",
            )
            return await prepare(self.backend, asked)

    async def _seen_messages(
        self,
        messages: Sequence[ChatMessage],
        client: Client,
        annotations: dict[str, JsonValue],
    ) -> Sequence[ChatMessage]:
        """The messages as hooks let them through."""
        if not self.hooks.before:
            return messages
        turns = tuple(SeenTurn(_seen_role(one), _plain_text(one)) for one in messages)
        seen = await self._let_through(turns, client, annotations)
        return [
            message if told == before else message.model_copy(update={"content": told.text})
            for message, before, told in zip(messages, turns, seen, strict=True)
        ]

    # -- completions ------------------------------------------------------------------------------

    async def completions(
        self, request: CompletionRequest, client: Client, annotations: dict[str, JsonValue]
    ) -> tuple[list[Generation], list[Echo]]:
        """A completion for each prompt, sound and ready to begin, and the prompts.

        Raises as `chat`.
        """
        self.require_model(request.model)
        prompts = request.prompts
        num_choices = len(prompts) * (request.n or 1)
        most_choices = self.settings.limits.max_choices
        if num_choices > most_choices:
            raise bad_request(
                f"{num_choices} completions are asked for, expected at most {most_choices}",
                "prompt",
            )
        form = form_of(request)
        scores = bool(request.echo) and request.logprobs is not None
        generations: list[Generation] = []
        echoes: list[Echo] = []
        for prompt in prompts:
            with self._refusing(request, "prompt"):
                echo = await self._echo(prompt, client, annotations)
                echoes.append(echo)
                asked = self._asked(
                    request, client, echo.ids, form, request.max_tokens, request.logprobs
                )
                nothing = request.max_tokens == 0
                asked = replace(asked, scores_prompt=scores, writes_nothing=nothing)
                generations.append(await prepare(self.backend, asked))
        return generations, echoes

    async def _echo(
        self, prompt: str | list[int], client: Client, annotations: dict[str, JsonValue]
    ) -> Echo:
        tokenizer = self.backend.tokenizer
        encode = tokenizer.encode_completion
        if isinstance(prompt, str):
            text, ids = prompt, await anyio.to_thread.run_sync(encode, prompt)
        else:
            self.require_ids(prompt, "prompt")
            text, ids = tokenizer.decode(prompt, skip_special=False), prompt
        if self.hooks.before:
            turns = (SeenTurn("user", text),)
            (seen,) = await self._let_through(turns, client, annotations)
            if seen.text != text:
                text, ids = seen.text, await anyio.to_thread.run_sync(encode, seen.text)
        if not ids:
            raise bad_request("prompt is empty", "prompt")
        return Echo(text, tuple(ids))

    def require_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises RequestError 400 of `param` for an id that the model does not have."""
        size = self.backend.engine.vocab_size
        strange = next((one for one in ids if not 0 <= one < size), None)
        if strange is not None:
            raise bad_request(f"token id {strange} is not in the vocabulary of {size} ids", param)

    # -- both -------------------------------------------------------------------------------------

    async def seen_text(self, written: Written, client: Client) -> str | None:
        """What hooks make of an answer; None if they do not give it."""
        try:
            return await self.hooks.look_after(
                replace(written, source=client.path, client=client.key.name)
            )
        except Blocked:
            return None

    async def _let_through(
        self,
        turns: tuple[SeenTurn, ...],
        client: Client,
        annotations: dict[str, JsonValue],
    ) -> tuple[SeenTurn, ...]:
        """The turns as hooks let them through. Raises RequestError 400 where they do not."""
        try:
            return await self.hooks.look_before(
                Prompted(client.path, client.key.name, turns, annotations)
            )
        except Blocked as error:
            raise RequestError(
                Failure(400, f"the prompt is blocked: {error.reason}", code="content_filter")
            ) from error

    def _asked(
        self,
        request: SamplingFields,
        client: Client,
        prompt: tuple[int, ...],
        form: GenerateRequest,
        most: int | None,
        num_logprobs: int | None,
    ) -> Asked:
        self.require_ids(biased_ids(request), "logit_bias")
        return Asked(
            prompt,
            with_stops(form, request.stops),
            sampling_of(request, None if most == 0 else most, num_logprobs),
            request.n or 1,
            namespace_of(client.key, request.cache_salt),
        )

    @contextmanager
    def _refusing(self, request: SamplingFields, prompt_field: str) -> Generator[None]:
        """Name the field that brought a refusal about, and count what took too long."""
        self.counts.num_compiling += 1
        try:
            yield
        except FlowForgeError as error:
            if isinstance(error.__cause__, GrammarLate | Interrupted):
                self.counts.num_grammar_timeouts += 1
            failure = failure_of(error)
            if failure.status != 400:
                raise
            message = failure.message
            if error.code == _NO_FORM:
                # What helps the author of a workflow is not what helps a client.
                message = f'{error.message}; leave it out, or do not ask for "strict"'
            if error.code in _OF_FORMS:
                param = form_field_of(request)
            elif error.code in _OF_PROMPTS:
                param = prompt_field
            else:
                param = _FIELDS.get(error.code)
            raise RequestError(replace(failure, message=message, param=param)) from error
        finally:
            self.counts.num_compiling -= 1


_NO_FORM = "WF411"
_OF_FORMS = frozenset({_NO_FORM, "WF414", "WF415", "WF430", "WF431", "WF432"})
"""Errors about the form of the answer, whichever field says it."""
_OF_PROMPTS = frozenset({"EN304", "EN307"})
_FIELDS = {
    # Of what sampling is asked for, all but this is in range when a request has been read.
    "EN210": "logit_bias",
    "WF421": "tools",
}
"""Which field any other error is about."""


def _seen_role(message: ChatMessage) -> SeenRole:
    return "system" if message.role == "developer" else message.role


def _plain_text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "".join(part.text or "" for part in message.content)
    return message.content or ""
