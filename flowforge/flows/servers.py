"""Servers of the Model Context Protocol whose tools a flow's model may call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from flowforge.errors import Location, WorkflowError
from flowforge.flows.durations import seconds_of
from flowforge.language.program import McpServer, ToolSpec
from flowforge.language.types import AnyType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from flowforge.flows.tool import Effect
    from flowforge.secrets.secret_box import SecretBox
    from flowforge.tools.mcp_server import McpConnection


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of one server; made by `mcp`. Each run reaches it for itself, and lets it go."""

    spec: ToolSpec

    def __repr__(self) -> str:
        return f"McpTools({self.spec.name})"


def mcp(
    name: str,
    *,
    command: Sequence[str] = (),
    url: str | None = None,
    only: Sequence[str] = (),
    env: Sequence[str] | Mapping[str, str] = (),
    token_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    effect: Effect = "write",
    timeout: str | float | None = None,
    concurrency: int | None = None,
) -> McpTools:
    """The tools of a server, for `Chat.gen(tools=…)`; models know them as NAME__TOOL.

        docs = ff.mcp("docs", command=["python", "docs_server.py"], effect="read")

    The words are those of `mcp:` in a workflow file; texts of `env` and `headers` may hold
    `ff.secret(…)`. The first turn that offers them reaches the
    server, a process in the working directory or a url; it is let go when the run ends.
    Raises WorkflowError WF616.
    """
    if bool(command) == (url is not None):
        raise WorkflowError(
            "WF616",
            f"server {name!r} is reached by a command or by a url, and has both or neither",
            help="write mcp(NAME, command=[program, argument]) or mcp(NAME, url='http://…')",
        )
    if not name.isidentifier() or "__" in name:
        raise WorkflowError(
            "WF616", f"server {name!r} must be called by one word without '__'", help="rename it"
        )
    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    place = Location("<flow>", 1, 1)
    if caller is not None:
        place = Location(caller.f_code.co_filename, caller.f_lineno, 1)
    named = env if isinstance(env, Mapping) else {}
    names = () if isinstance(env, Mapping) else tuple(env)
    server = McpServer(tuple(command), url, names, token_env, named, headers or {})
    return McpTools(
        ToolSpec(
            name=name,
            function="",
            effect=effect,
            parameters=None,
            result=AnyType(),
            timeout_s=None if timeout is None else seconds_of(timeout),
            concurrency=concurrency,
            location=place,
            server=server,
            only=tuple(only),
        )
    )


class FlowServers:
    """The servers of one run: reached at first use, let go by `close`."""

    def __init__(self, secrets: SecretBox) -> None:
        self._secrets = secrets
        self._connections: dict[int, McpConnection] = {}
        self._opening: anyio.Lock = anyio.Lock()
        self._tasks: TaskGroup | None = None

    def serve_in(self, tasks: TaskGroup) -> None:
        """Hold connections in the run's own task group, which ends after `close`."""
        self._tasks = tasks

    async def connection(self, tools: McpTools) -> McpConnection:
        """The connection to a server. Raises ToolError TL301, TL302."""
        from flowforge.tools.mcp_server import McpConnection

        async with self._opening:
            found = self._connections.get(id(tools.spec))
            if found is None:
                assert self._tasks is not None, "a flow runs in a task group"
                found = McpConnection(tools.spec, self._secrets)
                failure = await self._tasks.start(found.serve, Path.cwd())
                if failure is not None:
                    raise failure
                self._connections[id(tools.spec)] = found
            return found

    def close(self) -> None:
        """Let all servers go."""
        for one in self._connections.values():
            one.close()
