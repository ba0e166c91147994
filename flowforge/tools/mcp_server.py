"""Tools of a server that speaks the Model Context Protocol, over its streams or over HTTP.

The connection lives in a task of its own: what goes wrong with it fails the calls that need it and
nothing else.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio

from flowforge.errors import ToolError
from flowforge.grammars.schema_dialect import make_validator
from flowforge.grammars.tool_formats import ToolDefinition
from flowforge.task_groups import first_error, open_task_group
from flowforge.tools.definitions import described

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from anyio.abc import TaskStatus
    from mcp import Client
    from mcp_types import CallToolResult, Tool

    from flowforge.language.program import JsonValue, McpServer, ToolSpec
    from flowforge.secrets.secret_box import SecretBox

_CONNECT_S = 30.0
"""How long a server may take to be there."""
_MAX_TOOLS = 1_000
_MIN_TOKEN_CHARS = 8
"""Shorter values of variables are settings and no secrets, as `1` or `fast`."""
_UNBOUNDED = float("inf")


@asynccontextmanager
async def open_server(
    spec: ToolSpec, folder: Path, secrets: SecretBox
) -> AsyncGenerator[McpConnection]:
    """Connect to a server for as long as the block lasts.

    folder: where its process runs. secrets: what it is given of them. Raises ToolError TL301 when
    it cannot be had, TL302 when it lacks a tool that the declaration names.
    """
    connection = McpConnection(spec, secrets)
    async with open_task_group() as tasks:
        failure: ToolError | None = await tasks.start(connection.serve, folder)
        if failure is not None:
            raise failure
        try:
            yield connection
        finally:
            connection.close()


class McpConnection:
    """One server of a run. definitions: its tools as models are told of them, NAME__TOOL.

    What it is given of the environment is masked from then on.
    """

    def __init__(self, spec: ToolSpec, secrets: SecretBox) -> None:
        self.spec = spec
        self._secrets = secrets
        self.definitions: tuple[ToolDefinition, ...] = ()
        self._client: Client | None = None
        self._failure: ToolError | None = None
        self._closing = anyio.Event()
        self._limiter = anyio.CapacityLimiter(spec.concurrency or _UNBOUNDED)
        self._schemas: dict[str, Mapping[str, JsonValue]] = {}

    def close(self) -> None:
        """Let the server go; `serve` returns when it has."""
        self._closing.set()

    async def serve(self, folder: Path, *, task_status: TaskStatus[ToolError | None]) -> None:
        """Hold the connection until `close`. Tells first whether there is one."""
        is_told = False
        # A deadline that is lifted once the server is there: what is entered stays entered.
        with anyio.CancelScope(deadline=anyio.current_time() + _CONNECT_S) as connecting:
            try:
                async with AsyncExitStack() as stack:
                    client = await stack.enter_async_context(await self._make_client(folder, stack))
                    self._take_tools(await _tools_of(client))
                    connecting.deadline = _UNBOUNDED
                    self._client = client
                    task_status.started(None)
                    is_told = True
                    await self._closing.wait()
            except Exception as error:
                self._failure = _as_failure(error, self.spec, self._secrets)
            finally:
                self._client = None
        if connecting.cancelled_caught:
            self._failure = _as_failure(TimeoutError(), self.spec, self._secrets)
        if not is_told:
            task_status.started(self._failure)

    async def call(self, member: str, arguments: Mapping[str, JsonValue], path: str) -> JsonValue:
        """Call one of the server's tools.

        Its structured result, or else its texts joined. Raises ToolError TL103 for arguments that
        its schema does not allow, TL202 after the timeout, TL301 when the server is gone, TL302 for
        a tool that it does not have, TL303 when the tool says that it failed.
        """
        if member not in self._schemas:
            known = ", ".join(self._schemas) or "none"
            raise self._error("TL302", member, path, "is not there", f"the server has: {known}")
        problem = next(
            make_validator(self._schemas[member]).iter_errors(cast("JsonValue", dict(arguments))),
            None,
        )
        if problem is not None:
            reason = f"got arguments that do not fit: {self._shown(problem.message, 300)}"
            raise self._error("TL103", member, path, reason)
        async with self._limiter:
            result = await self._result(member, dict(arguments), path)
        if result.is_error:
            raise self._error(
                "TL303", member, path, f"failed: {self._shown(_text_of(result), 2_000)}"
            )
        structured = cast("JsonValue", result.structured_content)
        if isinstance(structured, dict) and list(structured) == ["result"]:
            return structured["result"]
        return structured if structured is not None else _text_of(result)

    async def _result(
        self, member: str, arguments: dict[str, JsonValue], path: str
    ) -> CallToolResult:
        client, timeout_s = self._client, self.spec.timeout_s
        if client is None:
            raise self._failure or self._error("TL301", member, path, "has lost its server")
        with anyio.move_on_after(timeout_s) as scope:
            try:
                return await client.call_tool(member, cast("dict[str, object]", arguments))
            except Exception as error:
                shown = self._shown(str(error), 300)
                reason = f"was not answered: {type(error).__name__}: {shown}"
                raise self._error("TL301", member, path, reason) from error
        assert scope.cancelled_caught
        reason = f"did not return within its timeout of {timeout_s:g} s"
        raise self._error("TL202", member, path, reason, "raise the tool's 'timeout'")

    async def _make_client(self, folder: Path, stack: AsyncExitStack) -> Client:
        try:
            from mcp import Client, StdioServerParameters
        except ImportError as error:
            raise ToolError(
                "TL301",
                f"tool {self.spec.name!r} needs the Model Context Protocol's library",
                location=self.spec.location,
                help="install it: pip install 'flowforge[mcp]'",
            ) from error
        server = cast("McpServer", self.spec.server)
        if server.url is None:
            program, *words = server.command
            env = self._environment(server)
            return Client(
                StdioServerParameters(command=program, args=words, env=env, cwd=str(folder))
            )
        headers = {name: self._secrets.opened(text) for name, text in server.headers.items()}
        if server.token_env is not None:
            headers["Authorization"] = f"Bearer {self._variable(server.token_env)}"
        if not headers:
            return Client(server.url)
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
        return Client(streamable_http_client(server.url, http_client=http))

    def _environment(self, server: McpServer) -> dict[str, str]:
        """What the declaration names; the library adds the few that any process needs."""
        named = {name: self._variable(name) for name in server.env_names}
        return {**named, **{name: self._secrets.opened(one) for name, one in server.env.items()}}

    def _variable(self, name: str) -> str:
        value = os.environ.get(name)
        if value is None:
            raise ToolError(
                "TL301",
                f"server {self.spec.name!r} needs the environment variable {name!r}, which is not "
                "set",
                location=self.spec.location,
                help=f"set it before the run: export {name}=…",
            )
        if len(value) >= _MIN_TOKEN_CHARS:
            self._secrets.hide(value)
        return value

    def _shown(self, text: str, max_chars: int) -> str:
        # Masked before it is cut: the beginning of a secret is one, too.
        return self._secrets.masked(text)[:max_chars]

    def _take_tools(self, tools: list[Tool]) -> None:
        by_name = {tool.name: tool for tool in tools}
        missing = [name for name in self.spec.only if name not in by_name]
        if missing:
            raise self._error(
                "TL302", missing[0], "only", "is not there", f"the server has: {', '.join(by_name)}"
            )
        chosen = [tool for tool in tools if not self.spec.only or tool.name in self.spec.only]
        self._schemas = {
            tool.name: cast("dict[str, JsonValue]", tool.input_schema) for tool in chosen
        }
        self.definitions = tuple(
            ToolDefinition(
                f"{self.spec.name}__{tool.name}",
                tool.description or "",
                described(self._schemas[tool.name], {}),
            )
            for tool in chosen
        )

    def _error(
        self, code: str, member: str, path: str, reason: str, help: str | None = None
    ) -> ToolError:
        return ToolError(
            code,
            f"tool {member!r} of server {self.spec.name!r}, called by {path!r}, {reason}",
            location=self.spec.location,
            help=help,
        )


async def _tools_of(client: Client) -> list[Tool]:
    """All tools, page by page."""
    tools: list[Tool] = []
    cursor: str | None = None
    while len(tools) < _MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools[:_MAX_TOOLS]


def _text_of(result: CallToolResult) -> str:
    texts = [block.text for block in result.content if block.type == "text"]
    others = len(result.content) - len(texts)
    # What is no text cannot be told to a model of text; that it was there can.
    return "\n".join([*texts, *([f"({others} parts that are no text)"] if others else [])])


def _as_failure(error: Exception, spec: ToolSpec, secrets: SecretBox) -> ToolError:
    first = first_error(error)
    if isinstance(first, ToolError):
        return first
    is_late = isinstance(first, TimeoutError)
    reason = "it did not answer in time" if is_late else secrets.masked(str(first))[:300]
    failure = ToolError(
        "TL301",
        f"server {spec.name!r} cannot be reached: {reason or type(first).__name__}",
        location=spec.location,
        help="look whether its command or url is right, and run it by hand",
    )
    failure.__cause__ = first
    secrets.mask_error(failure)
    return failure
