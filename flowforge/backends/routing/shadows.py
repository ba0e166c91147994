"""A second model that answers beside the first: nobody sees its answer, but how like it is."""

from __future__ import annotations

import difflib
import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.notices import Compared
from flowforge.backends.protocol import GenerationDone
from flowforge.backends.routing.turns import text_of
from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from flowforge.backends.protocol import Conversation, GenerateRequest
    from flowforge.backends.routing.route import Route

_MAX_COMPARED_WORDS = 2_000
_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ShadowAnswer:
    """One answer of a second model. Owned by the conversation that asks for it.

    first: set by its owner to what the first model answered.
    """

    route: Route
    request: GenerateRequest
    first: GenerationDone | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    _first_ended: anyio.Event = field(default_factory=anyio.Event)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self, open_: Callable[[], Awaitable[Conversation]]) -> None:
        """Have the model answer on a conversation of its own, and tell how like it is."""
        shadow = self.route.shadow
        assert shadow is not None
        try:
            with self._scope:
                told = await self._compared(open_, shadow.to)
                if self.request.tell is not None:
                    self.request.tell(told)
        finally:
            self.ended.set()

    def take_first(self, done: GenerationDone) -> None:
        """The first model has answered."""
        self.first = done
        self._first_ended.set()

    def drop(self) -> None:
        """Nobody wants to know any more."""
        self._scope.cancel()

    async def _compared(self, open_: Callable[[], Awaitable[Conversation]], model: str) -> Compared:
        try:
            second = await self._answer(await open_())
        except FlowForgeError as error:
            return Compared(self.route.label, model, code=error.code)
        except Exception:
            # It must not fail a run that nobody asked it for.
            _logger.exception("the shadow %s of %s failed", model, self.route.label)
            return Compared(self.route.label, model, code="IN508")
        await self._first_ended.wait()
        assert self.first is not None, "set before the event"
        likeness = similarity(text_of(self.first), text_of(second))
        usage, reason = second.usage, second.finish_reason
        return Compared(self.route.label, model, likeness, usage, reason)

    async def _answer(self, conversation: Conversation) -> GenerationDone:
        request = replace(self.request, tell=None, written=())
        items = conversation.generate(request)
        done: GenerationDone | None = None
        try:
            async for item in items:
                if isinstance(item, GenerationDone):
                    done = item
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()
                await conversation.close()
        assert done is not None, "a generation ends with its result or an error"
        return done


def similarity(one: str, other: str) -> float:
    """How like two answers are, from 0 to 1: of equal JSON, or by the words that they share."""
    if one == other:
        return 1.0
    try:
        if json.loads(one) == json.loads(other):
            return 1.0
    except (ValueError, RecursionError):
        # Then they are texts.
        pass
    words = one.split()[:_MAX_COMPARED_WORDS], other.split()[:_MAX_COMPARED_WORDS]
    return round(difflib.SequenceMatcher(None, *words, autojunk=False).ratio(), 4)
