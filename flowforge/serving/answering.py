"""POST /v1/chat/completions and /v1/completions: requests answered whole or as streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from starlette.responses import JSONResponse, Response

from flowforge.backends.hooks import Written
from flowforge.serving.bodies import parse_body, read_bytes
from flowforge.serving.chat import ChatAnswer, ChatChunks
from flowforge.serving.completions import KIND, CompletionAnswer, CompletionChunks
from flowforge.serving.envelope import Chunks
from flowforge.serving.generation import Cost, End, Piece
from flowforge.serving.pace import until_it_ends
from flowforge.serving.requests import ChatRequest, CompletionRequest
from flowforge.serving.service import Client
from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from flowforge.backends.protocol import JsonValue
    from flowforge.serving.completions import Echo
    from flowforge.serving.event_stream import EventWriter
    from flowforge.serving.generation import CallWritten, Generation, Taker
    from flowforge.serving.service import Service


T = TypeVar("T")


@dataclass(slots=True)
class _Exchange:
    """One request while it is answered. annotations: what hooks say of it."""

    service: Service
    http: Request
    body: bytes
    client: Client
    started_at_s: float
    annotations: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])

    def note_cost(self, generations: Sequence[Generation], *, is_whole: bool) -> None:
        """For the access log, and for who records."""
        cost = sum((one.cost for one in generations), Cost())
        self.http.scope["state"]["cost"] = cost
        recorder = self.service.recorder
        if recorder is not None:
            recorder.take(
                self.started_at_s, self.client.path, self.body, cost if is_whole else None
            )

    def extras(self) -> dict[str, Any]:
        """Fields that the answer has beside those of the API."""
        return {"annotations": self.annotations} if self.annotations else {}


class Answering:
    """The two endpoints of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        exchange = await self._begin(request)
        asked = parse_body(exchange.body, ChatRequest)
        generation = await self._unless_gone(
            exchange, partial(self._service.chat, asked, exchange.client, exchange.annotations)
        )
        if asked.stream:
            return self._service.stream(partial(self._write_chat, exchange, asked, generation))
        return await self._unless_gone(
            exchange, partial(self._whole_chat, exchange, asked, generation)
        )

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        exchange = await self._begin(request)
        asked = parse_body(exchange.body, CompletionRequest)
        prepared = await self._unless_gone(
            exchange,
            partial(self._service.completions, asked, exchange.client, exchange.annotations),
        )
        generations, echoes = prepared
        work = partial(_Completions, exchange, asked, generations, echoes)
        if asked.stream:
            return self._service.stream(work().write)
        return await self._unless_gone(exchange, work().whole)

    async def _begin(self, request: Request) -> _Exchange:
        """Read the body. Raises RequestError 413 and 408, and ClientGoneError."""
        recorder = self._service.recorder
        started_at_s = 0.0 if recorder is None else recorder.now_s()
        body = await read_bytes(request, self._service.settings)
        client = Client(request.state.key, request.url.path)
        return _Exchange(self._service, request, body, client, started_at_s)

    async def _unless_gone(self, exchange: _Exchange, work: Callable[[], Awaitable[T]]) -> T:
        """What the work returns. Raises ClientGoneError when the client goes."""
        return await self._service.unless_gone(exchange.http, work)

    # -- chats ------------------------------------------------------------------------------------

    async def _whole_chat(
        self, exchange: _Exchange, asked: ChatRequest, generation: Generation
    ) -> Response:
        service = self._service
        answer = ChatAnswer(
            service.envelope("chatcmpl"),
            asked.n or 1,
            service.texts,
            has_logprobs=bool(asked.logprobs),
        )
        await _run(exchange, [generation], [_Seen(exchange, answer.take)], until_it_ends)
        return JSONResponse(answer.body(generation, **exchange.extras()))

    async def _write_chat(
        self,
        exchange: _Exchange,
        asked: ChatRequest,
        generation: Generation,
        writer: EventWriter,
    ) -> None:
        service = self._service
        envelope = service.envelope("chatcmpl")
        chunks = Chunks(envelope, writer, "chat.completion.chunk", _tells_usage(asked))
        chat = ChatChunks(chunks, service.texts, has_logprobs=bool(asked.logprobs))
        await chat.begin(asked.n or 1)
        await _run(exchange, [generation], [_Seen(exchange, chat.take)], service.pace.rest_s)
        await chunks.end(generation.cost, **exchange.extras())


@dataclass(frozen=True, slots=True)
class _Completions:
    """Completions of some prompts, all at once."""

    exchange: _Exchange
    asked: CompletionRequest
    generations: list[Generation]
    echoes: list[Echo]

    async def whole(self) -> Response:
        service = self.exchange.service
        answer = CompletionAnswer(
            service.envelope("cmpl"),
            len(self.generations),
            self.asked.n or 1,
            service.texts,
            echoes=self.echoes if self.asked.echo else None,
            has_logprobs=self.asked.logprobs is not None,
        )
        takers = [
            _Seen(self.exchange, partial(answer.take, idx)) for idx in range(len(self.generations))
        ]
        await _run(self.exchange, self.generations, takers, until_it_ends)
        return JSONResponse(answer.body(self.generations, **self.exchange.extras()))

    async def write(self, writer: EventWriter) -> None:
        service = self.exchange.service
        chunks = Chunks(service.envelope("cmpl"), writer, KIND, _tells_usage(self.asked))
        texts = CompletionChunks(
            chunks,
            self.asked.n or 1,
            service.texts,
            has_logprobs=self.asked.logprobs is not None,
        )
        takers = [
            _Seen(self.exchange, partial(texts.take, idx)) for idx in range(len(self.generations))
        ]
        if self.asked.echo:
            for idx, (generation, echo) in enumerate(
                zip(self.generations, self.echoes, strict=True)
            ):
                generation.begun = partial(texts.echo, idx, echo, generation)
        await _run(self.exchange, self.generations, takers, service.pace.rest_s)
        cost = sum((one.cost for one in self.generations), Cost())
        await chunks.end(cost, **self.exchange.extras())


class _Seen:
    """Hands on what choices write; where hooks see answers, each whole and after they did."""

    def __init__(self, exchange: _Exchange, take: Taker) -> None:
        self._exchange = exchange
        self._take = take
        self._held: dict[int, tuple[list[str], list[CallWritten]]] = {}

    async def __call__(self, told: Piece | End) -> None:
        """Take one piece or end of a choice."""
        if not self._exchange.service.hooks.after:
            await self._take(told)
            return
        texts, calls = self._held.setdefault(told.choice, ([], []))
        if isinstance(told, Piece):
            texts.append(told.text)
            calls += told.calls
            return
        written = Written(
            "", "", "".join(texts), tuple(one.call for one in calls), self._exchange.annotations
        )
        text = await self._exchange.service.seen_text(written, self._exchange.client)
        if text is None:
            await self._take(End(told.choice, "content_filter", told.num_tokens))
            return
        # What its tokens were is not told: they may be other words.
        await self._take(Piece(told.choice, text, tuple(calls)))
        await self._take(told)


async def _run(
    exchange: _Exchange,
    generations: Sequence[Generation],
    takers: Sequence[Taker],
    rest_s: Callable[[], float],
) -> None:
    is_whole = False
    try:
        async with anyio.create_task_group() as tasks:
            for generation, taker in zip(generations, takers, strict=True):
                tasks.start_soon(generation.run, taker, rest_s)
        is_whole = True
    except ExceptionGroup as group:
        raise first_error(group) from None
    finally:
        exchange.note_cost(generations, is_whole=is_whole)


def _tells_usage(asked: ChatRequest | CompletionRequest) -> bool:
    return asked.stream_options is not None and bool(asked.stream_options.include_usage)
