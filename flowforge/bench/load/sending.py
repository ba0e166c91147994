"""Requests sent to one server, and the times at which pieces of their answers came."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.remote.answer import RemoteAnswer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.backends.remote.server import RemoteServer
    from flowforge.bench.load.traffic import Ask
    from flowforge.language.program import JsonValue


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times in seconds; ttft_s is from the moment at which it was due.

    gaps_s: between pieces of the answer (ITL). code: of what it failed with. wait_s: after it was
    due, until it was sent.
    """

    ttft_s: float = 0.0
    total_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    code: str | None = None
    wait_s: float = 0.0

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token behind the first; None of a single one."""
        if self.output_tokens < 2:
            return None
        return (self.total_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(slots=True)
class Sent:
    """What one round of requests came to. wall_s: from the first to the end of the last."""

    samples: list[Sample] = field(default_factory=list[Sample])
    wall_s: float = 0.0

    def and_(self, other: Sent) -> Sent:
        """Both, one behind the other."""
        return Sent([*self.samples, *other.samples], self.wall_s + other.wall_s)


async def send(
    server: RemoteServer,
    asks: Sequence[Ask],
    concurrency: int | None,
    tell: Callable[[Sample], None] = lambda _: None,
    now: Callable[[], float] = time.monotonic,
) -> Sent:
    """Send requests: each at its time, or as soon as fewer than `concurrency` are under way.

    concurrency: None is any number. An open loop sends on time whatever the server does, so that
    one that falls behind shows in its TTFT. tell: hears of every answer.
    """
    sent = Sent()
    room = None if concurrency is None else anyio.Semaphore(concurrency)
    started_at = now()

    async def one(ask: Ask, due_at: float) -> None:
        try:
            sample = await _ask(server, ask, due_at, now)
        finally:
            if room is not None:
                room.release()
        sent.samples.append(sample)
        tell(sample)

    async with anyio.create_task_group() as tasks:
        for ask in asks:
            if ask.at_s is not None:
                await anyio.sleep(max(0.0, started_at + ask.at_s - now()))
            due_at = now() if ask.at_s is None else started_at + ask.at_s
            if room is not None:
                await room.acquire()
                due_at = now() if ask.at_s is None else due_at
            tasks.start_soon(one, ask, due_at)
    sent.wall_s = now() - started_at
    return sent


def _require_json(answer: RemoteAnswer) -> None:
    """Raise EngineError EN406 for an answer that should be JSON and is not."""
    try:
        json.loads(answer.text)
    except ValueError as error:
        raise EngineError("EN406", f"the answer is no JSON: {answer.text[:80]!r}") from error


async def _ask(server: RemoteServer, ask: Ask, due_at: float, now: Callable[[], float]) -> Sample:
    body: dict[str, JsonValue] = {
        "model": server.model.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **ask.body,
    }
    answer = RemoteAnswer(server.model.label)
    came: list[float] = []
    wait_s = now() - due_at
    try:
        chunks = server.chunks(body, None)
        async with aclosing(chunks):
            async for chunk in chunks:
                before = answer.num_chunks
                for _ in answer.deltas(chunk):
                    # Only what they say is of no use here.
                    pass
                if answer.num_chunks > before:
                    came.append(now())
        if answer.ending() == "stop" and ask.has_form and not answer.has_calls:
            _require_json(answer)
    except EngineError as error:
        return Sample(code=error.code, wait_s=wait_s)
    ended_at = now()
    usage = answer.usage(0.0, 0.0)
    return Sample(
        ttft_s=(came[0] if came else ended_at) - due_at,
        total_s=ended_at - due_at,
        gaps_s=tuple(later - earlier for earlier, later in pairwise(came)),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.reused_tokens,
        output_tokens=usage.generated_tokens,
        wait_s=wait_s,
    )
