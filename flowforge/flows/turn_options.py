"""What may be said about a turn of the model, as keyword arguments of a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, cast

from flowforge.flows.sampling import SamplingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.flows.tool_turns import AnyTool, ModelTool
    from flowforge.flows.workflow_tools import WorkflowTool


class ToolOptions(TypedDict, total=False):
    """What the model may call before it answers.

    tools: functions made by `tool`, servers by `mcp`, workflows by `workflow`. choice: "auto",
    "required" or "none", or a tool, or the name of one (`NAME__TOOL` of a server's): what the first
    turn must call. rounds: turns with calls, at most; 8 without. parallel: whether, or how many,
    calls one turn may hold.
    on_rounds: what follows the last round, on_tool_error: what a failed call; as in a workflow's
    `gen`.
    """

    tools: Sequence[ModelTool]
    choice: str | AnyTool | WorkflowTool
    rounds: int
    parallel: bool | int
    on_rounds: Literal["answer", "fail"]
    on_tool_error: Literal["tell", "fail"]


class TurnOptions(SamplingOptions, ToolOptions, total=False):
    """Of one turn: how its tokens are chosen, how it is held to its form, what it may call."""


def split_options(options: TurnOptions) -> tuple[SamplingOptions, ToolOptions]:
    """The options about tools apart from the others."""
    of_tools = ToolOptions.__annotations__
    tools = {name: value for name, value in options.items() if name in of_tools}
    others = {name: value for name, value in options.items() if name not in of_tools}
    return cast("SamplingOptions", others), cast("ToolOptions", tools)
