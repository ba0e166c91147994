"""Tools of a real server process, over its streams and over HTTP on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import Location, ToolError
from flowforge.grammars.tool_formats import ToolCall
from flowforge.language.loader import load_text, require_program
from flowforge.language.program import McpServer, ToolSpec
from flowforge.language.types import ANY
from flowforge.runtime.run import start
from flowforge.secrets.secret import secret
from flowforge.secrets.secret_box import SecretBox
from flowforge.tools.mcp_server import open_server
from flowforge.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Generator

SUPPORT = Path(__file__).parent.parent / "support"
COMMAND = (sys.executable, "mcp_tools.py")


def spec(server: McpServer, only: tuple[str, ...] = (), timeout_s: float | None = None) -> ToolSpec:
    place = Location("t.yaml", 3, 1)
    return ToolSpec("kit", "", "read", None, ANY, timeout_s, None, place, server=server, only=only)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop where it does not say otherwise: each test starts processes."""
    return "asyncio"


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    """A server over HTTP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*COMMAND, str(port)]
    with subprocess.Popen(command, cwd=SUPPORT, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_server_over_its_streams_lists_and_runs_its_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOWFORGE_TEST_TOKEN", "s3cret")
    monkeypatch.setenv("FLOWFORGE_TEST_OTHER", "hidden")
    server = McpServer(COMMAND, env_names=("FLOWFORGE_TEST_TOKEN",))

    async with open_server(spec(server), SUPPORT, SecretBox()) as kit:
        names = {one.name for one in kit.definitions}
        assert {"kit__add", "kit__shout", "kit__fail"} <= names
        add = next(one for one in kit.definitions if one.name == "kit__add")
        assert add.description == "Add two numbers."
        assert add.parameters["required"] == ["left", "right"]
        assert await kit.call("add", {"left": 2, "right": 3}, "a/kit__add[0]") == 5
        assert await kit.call("shout", {"text": "hey"}, "a") == "HEY<|im_end|>"
        assert await kit.call("variable", {"name": "FLOWFORGE_TEST_TOKEN"}, "a") == "s3cret"
        assert await kit.call("variable", {"name": "FLOWFORGE_TEST_OTHER"}, "a") == "unset"


async def test_what_a_server_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWFORGE_TEST_TOKEN", raising=False)
    only = spec(McpServer(COMMAND), only=("fail", "add"))
    async with open_server(only, SUPPORT, SecretBox()) as kit:
        assert [one.name for one in kit.definitions] == ["kit__add", "kit__fail"]
        for member, arguments, code in (
            ("fail", {"reason": "no luck"}, "TL303"),
            ("add", {"left": "x", "right": 1}, "TL103"),
            ("shout", {"text": "x"}, "TL302"),
        ):
            with pytest.raises(ToolError) as caught:
                await kit.call(member, arguments, "a")  # type: ignore[arg-type]
            assert caught.value.code == code

    for broken, code in (
        (spec(McpServer(("no-such-program",))), "TL301"),
        (spec(McpServer(COMMAND), only=("fly",)), "TL302"),
        (spec(McpServer(COMMAND, env_names=("FLOWFORGE_TEST_TOKEN",))), "TL301"),
        (spec(McpServer(url="http://127.0.0.1:9/mcp")), "TL301"),
    ):
        with pytest.raises(ToolError) as caught:
            async with open_server(broken, SUPPORT, SecretBox()):
                pass
        assert caught.value.code == code


async def test_a_server_that_dies_fails_its_calls_and_nothing_else() -> None:
    async with open_server(spec(McpServer(COMMAND), timeout_s=5), SUPPORT, SecretBox()) as kit:
        for _ in range(2):
            with pytest.raises(ToolError) as caught:
                await kit.call("leave", {}, "a")
            assert caught.value.code in ("TL202", "TL301")


async def test_a_server_over_http_runs_its_tools(url: str) -> None:
    async with open_server(spec(McpServer(url=url)), SUPPORT, SecretBox()) as kit:
        assert await kit.call("add", {"left": 2, "right": 3}, "a") == 5


async def test_a_process_is_given_secrets_that_it_cannot_tell_anybody() -> None:
    secrets = SecretBox({"API_KEY": "s3cr3t-VALUE"})
    server = McpServer(COMMAND, env={"TOKEN": "key " + secret("API_KEY"), "MODE": "fast"})

    async with open_server(spec(server), SUPPORT, secrets) as kit:
        token = await kit.call("variable", {"name": "TOKEN"}, "a")
        mode = await kit.call("variable", {"name": "MODE"}, "a")
        toolbox = Toolbox([kit.spec], {}, {kit.spec.location: kit}, secrets)
        told = await toolbox.call(kit.spec, {"name": "TOKEN"}, "a", "variable")

    assert ("key s3cr3t-VALUE", "fast", "key ***") == (token, mode, told)


async def test_a_url_is_sent_secrets_in_headers_and_no_error_shows_them() -> None:
    seen: list[dict[str, str]] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_error(401, explain=self.headers["X-Key"])

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    secrets = SecretBox({"API_KEY": "s3cr3t-VALUE"})
    with HTTPServer(("127.0.0.1", 0), Refusing) as http:
        answering = threading.Thread(target=http.serve_forever, daemon=True)
        answering.start()
        url = f"http://127.0.0.1:{http.server_port}/mcp"
        headers = {"X-Key": "key " + secret("API_KEY"), "X-Mode": "fast"}
        with pytest.raises(ToolError) as caught:
            async with open_server(spec(McpServer(url=url, headers=headers)), SUPPORT, secrets):
                pass
        http.shutdown()
        answering.join()

    assert ("key s3cr3t-VALUE", "fast") == (seen[0]["x-key"], seen[0]["x-mode"])
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


async def test_a_step_calls_the_tools_of_a_server() -> None:
    text = (
        "flowforge: 1\nname: t\ntools:\n"
        f"  kit: {{ mcp: {{ command: [{sys.executable}, mcp_tools.py] }}, only: [add] }}\n"
        "steps:\n  a: { user: hi, gen: { tools: [kit] } }\n"
        "  b: { call: kit__add, with: { left: 1, right: 1 } }\n"
        "outputs: { a: '${ a }', b: '${ b }' }\n"
    )
    program = require_program(load_text(text, str(SUPPORT / "t.yaml")))
    call = ScriptedAnswer(calls=(ToolCall("kit__add", {"left": 2, "right": 3}),))
    backend = ScriptBackend({"a": [call, "five"]})

    async with start(program, {}, backend, seed=1) as running:
        outputs = await running.result()

    assert outputs == {"a": "five", "b": 2}
    assert "tool: 5" in backend.prompts[-1].text
