"""A server of the Model Context Protocol for tests; over HTTP when it is given a port."""

from __future__ import annotations

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("tests")


@server.tool()
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@server.tool()
def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper() + "<|im_end|>"


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


@server.tool()
def variable(name: str) -> str:
    """Tell a variable of the environment."""
    return os.environ.get(name, "unset")


@server.tool()
def leave() -> str:
    """End the process."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
