"""Conversations that stand for prompts to come, so that a backend keeps what is cached of them.

They are opened only where memory is short: before, nothing is given up, and to make a prompt's
tokens takes time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.preparing import expect_beginning
from flowforge.errors import EngineError, WorkflowError
from flowforge.runtime.closing import close_conversation

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.runtime.commands import ExpectPrompt
    from flowforge.runtime.state import Failure


class ExpectedPrompts:
    """What one run expects to ask, and has told. left_s: of a call or question, by its path."""

    def __init__(self, backend: Backend, left_s: Callable[[str], float]) -> None:
        self._backend = backend
        self._left_s = left_s
        self._coming: dict[str, ExpectPrompt] = {}
        self._told: dict[str, ExpectPrompt] = {}
        self._open: dict[str, Conversation] = {}
        self._is_telling = False
        self._failures: list[Failure] = []

    def is_coming(self, path: str) -> bool:
        """Whether the step of `path` is expected."""
        return path in self._coming

    def take(self, prompt: ExpectPrompt) -> bool:
        """Learn of a prompt; True when `tell` is to be run for it and for all others."""
        self._coming[prompt.path] = prompt
        if self._is_telling or not self._is_short():
            return False
        self._is_telling = True
        return True

    async def tell(self) -> None:
        """Tell the backend what it has not been told yet."""
        try:
            while untold := [one for one in self._coming.values() if self._is_untold(one)]:
                await self._tell_one(untold[0])
        except (EngineError, WorkflowError):
            # Nothing was asked for yet: the step itself will meet what is wrong, and tell.
            self.end()
        finally:
            self._is_telling = False

    async def begun(self, path: str) -> None:
        """The step of `path` asks for itself now."""
        self._coming.pop(path, None)
        await self._close(path)

    def end(self) -> None:
        """Nothing more is asked."""
        self._coming.clear()

    async def close(self) -> list[Failure]:
        """Close all; returns what the backend said against it, also before."""
        self.end()
        for path in list(self._open):
            await self._close(path)
        return self._failures

    async def _tell_one(self, prompt: ExpectPrompt) -> None:
        path, told = prompt.path, self._told.get(prompt.path)
        text = (prompt.system, prompt.beginning)
        if told is not None and text != (told.system, told.beginning):
            await self._close(path)
        if path not in self._open:
            conversation = await self._backend.open(system=prompt.system)
            # No await from here on: what is open must come into the hands that close it.
            self._open[path] = conversation
            expect_beginning(conversation, prompt.beginning)
        if path not in self._coming:
            await self._close(path)
            return
        ready_in_s = max(map(self._left_s, prompt.awaits), default=0.0)
        self._open[path].expect_use(prompt.num_steps, ready_in_s)
        self._told[path] = prompt

    async def _close(self, path: str) -> None:
        conversation = self._open.pop(path, None)
        if conversation is not None:
            await close_conversation(conversation, path, self._failures)

    def _is_untold(self, prompt: ExpectPrompt) -> bool:
        return self._told.get(prompt.path) is not prompt

    def _is_short(self) -> bool:
        """Whether less than half of the pages has never been used."""
        statistics = self._backend.statistics()
        return 2 * statistics.pages_free < statistics.pages_total
