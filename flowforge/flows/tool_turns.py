"""A turn of a flow in which the model calls tools, round by round, before it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.flows.servers import McpTools
from flowforge.flows.tool import Tool
from flowforge.flows.workflow_tools import WorkflowTool
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.program import ToolUse
from flowforge.runtime.verbs.rules import Invoke, Tell
from flowforge.runtime.verbs.tool_rounds import (
    Rounds,
    call_ended,
    call_path,
    next_round,
    offer_of,
    require_whole_calls,
)
from flowforge.tools.definitions import definition_of_function

if TYPE_CHECKING:
    from flowforge.backends.protocol import GenerationDone, ToolOffer
    from flowforge.flows.cursor import Turn
    from flowforge.flows.sampling import SamplingOptions
    from flowforge.flows.session import FlowSession
    from flowforge.flows.turn_options import ToolOptions
    from flowforge.grammars.tool_formats import ToolDefinition
    from flowforge.language.program import JsonValue
    from flowforge.runtime.verbs.rules import Action

AnyTool: TypeAlias = Tool[..., Any]
ModelTool: TypeAlias = AnyTool | McpTools | WorkflowTool
"""What `tools` of a chat takes."""

_DEFAULTS = ToolUse(())


@dataclass(frozen=True, slots=True)
class ToolTurns:
    """What a turn may call. Made by `Chat.gen`; the words are those of a workflow's `gen`."""

    tools: tuple[ModelTool, ...]
    use: ToolUse
    offered: tuple[ToolDefinition, ...]
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
        require_whole_calls(turn.path, done)
        while done.calls:
            rounds, actions = next_round(self.use, rounds, done.calls, turn.path)
            while actions:
                rounds, actions = await self._carry_out(rounds, actions, turn.path)
            done = await turn.follow(rounds.in_order, offer_of(self.use, rounds, self.offered))
            require_whole_calls(turn.path, done)
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
        tool = next(one for one in self.tools if one.spec is invoke.tool)
        step_path = call_path(path, invoke.key)
        try:
            with self.session.step(step_path, "call") as end:
                value = await self._call(tool, invoke, step_path)
                end.value = value
        except FlowForgeError as error:
            return error
        return value

    async def _call(self, tool: ModelTool, invoke: Invoke, path: str) -> JsonValue:
        session, arguments = self.session, invoke.arguments
        if isinstance(tool, McpTools):
            return await session.call_member(tool, invoke.member or "", arguments, path)
        if isinstance(tool, WorkflowTool):
            return await tool.call(session, arguments, path)
        return await session.call_tool(tool, arguments, path)


async def tool_turns(
    session: FlowSession, options: ToolOptions, sampling: SamplingOptions
) -> ToolTurns | None:
    """Read what a chat is told of tools; None without any.

    Raises WorkflowError WF616, ToolError TL102, TL301.
    """
    tools = tuple(options.get("tools", ()))
    if not tools:
        lone = next((name for name in options if name != "tools"), None)
        if lone is not None:
            raise _unusable(f"{lone!r} is about tools, and the turn has none")
        return None
    use = _use_of(tools, options)
    if sampling.get("stop"):
        raise _unusable("'stop' would end a call in its middle")
    changing = [tool.spec.name for tool in tools if tool.spec.effect == "write"]
    if changing and sampling.get("on_unsupported") == "relax":
        raise _unusable(f"an answer that is asked for again would call {changing[0]!r} again")
    offered: list[ToolDefinition] = []
    for tool in tools:
        offered += await _definitions(session, tool)
    known = [one.name for one in offered]
    if use.named is not None and use.named not in known:
        help = did_you_mean(use.named, known, f"tools: {', '.join(known)}")
        raise _unusable(f"{use.named!r} is to be called and is not among the tools", help)
    return ToolTurns(tools, use, tuple(offered), session)


def _use_of(tools: tuple[ModelTool, ...], options: ToolOptions) -> ToolUse:
    parallel, rounds = options.get("parallel", True), options.get("rounds", _DEFAULTS.rounds)
    max_calls = parallel
    if isinstance(parallel, bool):
        max_calls = _DEFAULTS.max_calls if parallel else 1
    if rounds < 1 or max_calls < 1:
        raise _unusable(f"rounds and parallel must be at least 1, got {rounds} and {max_calls}")
    choice = options.get("choice", "auto")
    word = choice if isinstance(choice, str) else choice.spec.name
    is_named = not isinstance(choice, str) or word not in ("auto", "required", "none")
    return ToolUse(
        tuple(tool.spec for tool in tools),
        "required" if is_named else cast("Literal['auto', 'required', 'none']", word),
        word if is_named else None,
        rounds,
        max_calls,
        options.get("on_rounds", "answer"),
        options.get("on_tool_error", "tell"),
    )


async def _definitions(session: FlowSession, tool: ModelTool) -> tuple[ToolDefinition, ...]:
    if isinstance(tool, WorkflowTool):
        return (tool.definition,)
    if isinstance(tool, McpTools):
        return (await session.servers.connection(tool)).definitions
    return (definition_of_function(tool.spec, session.function_tool(tool)),)


def _unusable(reason: str, help: str | None = None) -> WorkflowError:
    return WorkflowError("WF616", f"the tools of a turn cannot be used: {reason}", help=help)
