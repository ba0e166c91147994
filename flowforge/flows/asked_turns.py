"""A turn that the model is asked for: how it writes, what form it is held to, what it may call."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from flowforge.flows.tool_turns import tool_turns
from flowforge.flows.turn_options import split_options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from flowforge.backends.protocol import GenerationDone
    from flowforge.flows.cursor import Cursor, Form, Turn
    from flowforge.flows.retries import NextTry, Retry
    from flowforge.flows.sampling import SamplingOptions
    from flowforge.flows.tool_turns import ToolTurns
    from flowforge.flows.turn_options import TurnOptions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """Of the chat that owns the cursor. turns: None where the model may call nothing."""

    cursor: Cursor
    sampling: SamplingOptions
    form: Form
    turns: ToolTurns | None

    async def write(
        self, name: str, retry: Retry | int, read: Callable[[str, GenerationDone], T]
    ) -> T:
        """Have it written as the step `name`. read: makes the value of path and end, or raises.

        Each try answers the same prompt anew. Raises what `read` raises, ChatBusy.
        """

        async def attempt(path: str, following: NextTry | None) -> T:
            async with self.attempt(path, following) as (turn, done):
                value = read(path, done)
                turn.value = value
            return value

        is_relaxed = self.sampling.get("on_unsupported") == "relax"
        return await self.cursor.tried(name, retry, attempt, is_relaxed=is_relaxed)

    @asynccontextmanager
    async def attempt(
        self, path: str, following: NextTry | None
    ) -> AsyncGenerator[tuple[Turn, GenerationDone]]:
        """One try: the turn and those in which it calls tools, with the end of the last one."""
        async with self.cursor.attempt(path, self.sampling, self.form, following) as turn:
            yield turn, await (turn.write() if self.turns is None else self.turns.run(turn))


async def asked_turn(cursor: Cursor, options: TurnOptions, form: Form) -> AskedTurn:
    """What options and form come to. Raises WorkflowError WF616, ToolError TL102, TL301."""
    sampling, about_tools = split_options(options)
    turns = await tool_turns(cursor.session, about_tools, sampling)
    offer = None if turns is None else turns.first_offer
    return AskedTurn(cursor, sampling, replace(form, offer=offer), turns)
