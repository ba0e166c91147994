"""A turn of a flow in which the model calls tools, round by round, before it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.flows.answers import require_not_cut_off
from flowforge.flows.servers import McpTools
from flowforge.flows.tool import Tool
from flowforge.language.program import ToolUse
from flowforge.runtime.verbs.rules import Invoke, Tell
from flowforge.runtime.verbs.tool_rounds import (
    Rounds,
    call_ended,
    call_path,
    next_round,
    offer_of,
)
from flowforge.tools.definitions import definition_of_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.backends.protocol import GenerationDone, ToolOffer
    from flowforge.errors import Location
    from flowforge.flows.cursor import Turn
    from flowforge.flows.session import FlowSession
    from flowforge.grammars.tool_formats import ToolDefinition
    from flowforge.language.program import JsonValue
    from flowforge.runtime.verbs.rules import Action

AnyTool: TypeAlias = Tool[..., Any]
ToolChoiceWord: TypeAlias = Literal["auto", "required", "none"]
_MAX_CALLS = ToolUse(()).max_calls


@dataclass(frozen=True, slots=True)
class ToolTurns:
    """What a turn may call. Made by `Chat.gen`; the words are those of a workflow's `gen`."""

    tools: tuple[AnyTool | McpTools, ...]
    use: ToolUse
    offered: Mapping[Location, tuple[ToolDefinition, ...]]
    session: FlowSession

    @property
    def first_offer(self) -> ToolOffer:
        """What the model may call in its first turn."""
        return offer_of(self.use, Rounds(), self.offered)

    async def run(self, turn: Turn) -> GenerationDone:
        """Let the model write and call until it answers.

        Raises WorkflowError WF424, WF501 for a call that was cut off; ToolError where the turn is
        to fail by a call.
        """
        rounds = Rounds()
        done = await turn.write()
        while done.calls:
            rounds, actions = next_round(self.use, rounds, done.calls, turn.path)
            while actions:
                rounds, actions = await self._carry_out(rounds, actions, turn.path)
            done = await turn.follow(rounds.in_order, offer_of(self.use, rounds, self.offered))
        if done.cuts_call:
            require_not_cut_off(turn.path, done)
        return done

    async def _carry_out(
        self, rounds: Rounds, actions: tuple[Action, ...], path: str
    ) -> tuple[Rounds, tuple[Action, ...]]:
        """Run what may run side by side; what follows from it."""
        calls = [action for action in actions if isinstance(action, Invoke)]
        for action in actions:
            if isinstance(action, Tell):
                self.session.stream.emit(action.fact)
        results: dict[int, JsonValue | FlowForgeError] = {}

        async def call(idx: int, invoke: Invoke) -> None:
            results[idx] = await self._result(invoke, path)

        async with anyio.create_task_group() as tasks:
            for idx, invoke in enumerate(calls):
                tasks.start_soon(call, idx, invoke)
        following: tuple[Action, ...] = ()
        for idx, invoke in enumerate(calls):
            assert invoke.key is not None
            rounds, more = call_ended(self.use, rounds, invoke.key, results[idx], path)
            following += more
        return rounds, following

    async def _result(self, invoke: Invoke, path: str) -> JsonValue | FlowForgeError:
        assert invoke.key is not None
        tool = next(one for one in self.tools if one.spec == invoke.tool)
        step_path = call_path(path, invoke.key)
        try:
            with self.session.step(step_path, "call") as end:
                if isinstance(tool, McpTools):
                    member = invoke.member or ""
                    value = await self.session.call_member(
                        tool, member, invoke.arguments, step_path
                    )
                else:
                    value = await self.session.call_tool(tool, invoke.arguments, step_path)
                end.value = value
        except FlowForgeError as error:
            return error
        return value


async def tool_turns(
    session: FlowSession,
    tools: Sequence[AnyTool | McpTools],
    *,
    choice: ToolChoiceWord | AnyTool,
    rounds: int,
    parallel: bool | int,
    on_rounds: Literal["answer", "fail"],
    on_tool_error: Literal["tell", "fail"],
) -> ToolTurns:
    """Read the arguments of `Chat.gen`. Raises WorkflowError WF616, ToolError TL102, TL301."""
    max_calls = (_MAX_CALLS if parallel else 1) if isinstance(parallel, bool) else parallel
    if rounds < 1 or max_calls < 1:
        raise _unusable(f"rounds and parallel must be at least 1, got {rounds} and {max_calls}")
    if isinstance(choice, Tool) and choice not in tools:
        raise _unusable(f"tool {choice.spec.name!r} is to be called and is not among the tools")
    use = ToolUse(
        tuple(tool.spec for tool in tools),
        "required" if isinstance(choice, Tool) else choice,
        choice.spec.name if isinstance(choice, Tool) else None,
        rounds,
        max_calls,
        on_rounds,
        on_tool_error,
    )
    offered = {tool.spec.location: await _definitions(session, tool) for tool in tools}
    return ToolTurns(tuple(tools), use, offered, session)


async def _definitions(
    session: FlowSession, tool: AnyTool | McpTools
) -> tuple[ToolDefinition, ...]:
    if isinstance(tool, McpTools):
        return (await session.servers.connection(tool)).definitions
    return (definition_of_function(tool.spec, session.function_tool(tool)),)


def _unusable(reason: str) -> WorkflowError:
    return WorkflowError("WF616", f"the tools of a turn cannot be used: {reason}")
