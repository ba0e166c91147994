"""What all objects of one answer share, and how a stream of them is sent and ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowforge.serving.event_stream import EventWriter
    from flowforge.serving.generation import Cost


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of one answer share. created: seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str

    def around(self, kind: str, choices: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """An object of the API."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **fields,
        }


@dataclass(frozen=True, slots=True)
class Chunks:
    """A stream of chunks of one kind. tells_usage: whether the last one says what all cost."""

    envelope: Envelope
    writer: EventWriter
    kind: str
    tells_usage: bool

    async def send(self, choice: dict[str, Any]) -> None:
        """One chunk with one choice."""
        usage = {"usage": None} if self.tells_usage else {}
        await self.writer.send(self.envelope.around(self.kind, [choice], **usage))

    async def end(self, cost: Cost, **fields: Any) -> None:
        """The usage if it was asked for, and the mark of the end."""
        if self.tells_usage or fields:
            usage = {"usage": cost.as_usage()} if self.tells_usage else {}
            await self.writer.send(self.envelope.around(self.kind, [], **usage, **fields))
        await self.writer.send_text("[DONE]")
