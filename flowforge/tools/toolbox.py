"""The tools of one run, loaded before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.tools.function_tool import FunctionTool
from flowforge.tools.loading import load_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.language.program import JsonValue, Program, ToolSpec


class Toolbox:
    """Tools by their declaration, so that programs may use one name for different tools."""

    def __init__(self, programs: Iterable[Program]) -> None:
        """Load the tools of a program and of those it runs. Raises ToolError TL101, TL102."""
        self._tools = {
            spec.location: FunctionTool(spec, load_function(spec, _folder(program)))
            for program in programs
            for spec in program.tools.values()
        }

    async def call(
        self, spec: ToolSpec, arguments: Mapping[str, JsonValue], path: str
    ) -> JsonValue:
        """Call a tool; see `FunctionTool.call`."""
        return await self._tools[spec.location].call(arguments, path)


def _folder(program: Program) -> Path:
    return Path(program.file).resolve().parent
