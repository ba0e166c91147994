"""The tools of one run: functions loaded and servers reached before it begins."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError, InternalError
from flowforge.tools.definitions import definition_of_function, definition_of_program
from flowforge.tools.function_tool import FunctionTool
from flowforge.tools.loading import load_function

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from flowforge.errors import Location
    from flowforge.grammars.tool_formats import ToolDefinition
    from flowforge.language.program import JsonValue, Program, ToolSpec
    from flowforge.secrets.secret_box import SecretBox
    from flowforge.tools.mcp_server import McpConnection


@asynccontextmanager
async def open_toolbox(programs: Iterable[Program], secrets: SecretBox) -> AsyncGenerator[Toolbox]:
    """Load the tools of a program and of those it runs; servers are there as long as the block.

    secrets: what tools are given, and nobody is told. Raises ToolError TL101, TL102 for functions,
    TL301, TL302 for servers.
    """
    specs: dict[Location, tuple[ToolSpec, Path]] = {
        spec.location: (spec, _folder(program))
        for program in programs
        for spec in program.tools.values()
    }
    async with AsyncExitStack() as stack:
        servers: dict[Location, McpConnection] = {}
        try:
            functions = {
                place: FunctionTool(spec, load_function(spec, folder))
                for place, (spec, folder) in specs.items()
                if spec.server is None and spec.program is None
            }
            for place, (spec, folder) in specs.items():
                if spec.server is not None:
                    # Here and not above: the extra need not be installed where nobody uses it.
                    from flowforge.tools.mcp_server import open_server

                    opened = open_server(spec, folder, secrets)
                    servers[place] = await stack.enter_async_context(opened)
        except FlowForgeError as error:
            secrets.mask_error(error)
            raise
        yield Toolbox(tuple(spec for spec, _ in specs.values()), functions, servers, secrets)


class Toolbox:
    """Tools by the place of their declaration: programs may use one name for different tools.

    offered: what models are told of each declaration; of a server, all its tools.
    """

    def __init__(
        self,
        specs: Iterable[ToolSpec],
        functions: Mapping[Location, FunctionTool],
        servers: Mapping[Location, McpConnection],
        secrets: SecretBox,
    ) -> None:
        self._secrets = secrets
        self._functions = functions
        self._servers = servers
        self.offered: dict[Location, tuple[ToolDefinition, ...]] = {
            spec.location: self._definitions(spec) for spec in specs
        }

    async def call(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, JsonValue],
        path: str,
        member: str | None = None,
    ) -> JsonValue:
        """Call a tool with its secrets; see `FunctionTool.call` and `McpConnection.call`.

        No secret is in what it returns or raises.
        """
        function = self._functions.get(spec.location)

        async def act(opened: Mapping[str, JsonValue]) -> JsonValue:
            if function is not None:
                return await function.call(opened, path)
            if member is None:
                raise InternalError("IN520", f"tool {spec.name!r} was called and is no function")
            return await self._servers[spec.location].call(member, opened, path)

        return await self._secrets.call(arguments, act)

    def function_of(self, spec: ToolSpec) -> Callable[..., object] | None:
        """The function behind a tool; None for a server or a workflow."""
        tool = self._functions.get(spec.location)
        return None if tool is None else tool.function

    def _definitions(self, spec: ToolSpec) -> tuple[ToolDefinition, ...]:
        if spec.program is not None:
            return (definition_of_program(spec, spec.program),)
        if spec.location in self._servers:
            return self._servers[spec.location].definitions
        return (definition_of_function(spec, self._functions[spec.location]),)


def _folder(program: Program) -> Path:
    return Path(program.file).resolve().parent
