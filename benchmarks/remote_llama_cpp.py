"""Runs a workflow on llama-cpp-python's server: JSON, a choice, a fork, a stream, a cancel, tools.

    python benchmarks/remote_llama_cpp.py MODEL.gguf --server-python VENV/bin/python

The interpreter needs `llama-cpp-python[server]`. Prints what each check came to; exits with 1 where
one failed. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2

import flowforge as ff
from flowforge.backends.protocol import GenerateRequest, Sampling, TextDelta, ToolOffer
from flowforge.backends.remote.backend import open_remote
from flowforge.grammars.tool_formats import NamedTool, ToolDefinition
from flowforge.language.remote_models import RemoteModel

if TYPE_CHECKING:
    from collections.abc import Generator

_STARTS_WITHIN_S = 120
_WORKFLOW = """
flowforge: 1
name: on_llama_cpp
models: { small: { url: "URL", model: small, dialect: llama.cpp, concurrency: 1 } }
steps:
  colours:
    system: You are a careful analyst.
    user: Name three colours.
    model: remote/small
    gen:
      temperature: 0
      max_tokens: 80
      json: { type: array, items: { type: string, maxLength: 12 }, minItems: 3, maxItems: 3 }
  warm:
    from: colours
    user: Is the first one warm?
    gen: { temperature: 0, choice: ["yes", "no"], max_tokens: 10 }
  said:
    from: colours
    user: Write a short sentence on them.
    gen: { temperature: 0, max_tokens: 20 }
outputs: { colours: "${ colours }", warm: "${ warm }", said: "${ said }" }
"""
_WEATHER = ToolDefinition(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def main() -> int:
    """Start the server, check, stop it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--server-python", default=sys.executable)
    given = parser.parse_args()
    with _server(given.server_python, given.gguf) as url:
        results = {**_workflow(url), **anyio.run(_conversation, url)}
    for name, (is_right, shown) in results.items():
        print(f"{'ok  ' if is_right else 'FAIL'} {name}: {shown}")
    return 0 if all(is_right for is_right, _ in results.values()) else 1


@contextmanager
def _server(python: str, gguf: Path) -> Generator[str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [python, "-m", "llama_cpp.server", "--model", str(gguf), "--port", str(port)]
    # Without the last, a request ends as soon as the next one comes.
    options = ["--n_ctx", "2048", "--chat_format", "chatml-function-calling"]
    options += ["--interrupt_requests", "False"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        try:
            _wait_until_up(f"http://127.0.0.1:{port}/v1", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    import time

    for _ in range(_STARTS_WITHIN_S * 4):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            httpx2.get(f"{url}/models", timeout=1).raise_for_status()
            return
        except httpx2.HTTPError:
            time.sleep(0.25)
    raise SystemExit("the server did not start")


def _workflow(url: str) -> dict[str, tuple[bool, str]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "w.yaml"
        file.write_text(_WORKFLOW.replace("URL", url))
        outputs: Any = ff.run_sync(file)
    colours = outputs["colours"]
    return {
        "JSON under a schema": (len(colours) == 3, json.dumps(colours)),
        "a choice on a fork": (outputs["warm"] in ("yes", "no"), outputs["warm"]),
        "free text on a fork": (bool(outputs["said"]), repr(outputs["said"])),
    }


async def _conversation(url: str) -> dict[str, tuple[bool, str]]:
    results: dict[str, tuple[bool, str]] = {}
    model = RemoteModel("small", url, "small", "llama.cpp")
    async with open_remote(model) as backend:
        conversation = await backend.open()
        conversation.add_user("Count to a hundred.")
        items = conversation.generate(GenerateRequest(Sampling(max_tokens=400)))
        pieces = [await anext(items) for _ in range(3)]
        await items.aclose()
        is_text = all(isinstance(piece, TextDelta) for piece in pieces)
        results["a stream that is cancelled"] = (is_text, f"{len(pieces)} pieces")

        conversation = await backend.open()
        conversation.add_user("What is the weather in Oslo?")
        offer = ToolOffer((_WEATHER,), NamedTool("weather"), max_calls=1)
        request = GenerateRequest(Sampling(max_tokens=60, temperature=0), offer=offer)
        called: Any = [item async for item in conversation.generate(request)][-1]
        shown = [(call.name, dict(call.arguments)) for call in called.calls]
        results["a call of a tool"] = (len(shown) == 1, str(shown))
        conversation.add_results(["sunny"])
        request = GenerateRequest(Sampling(max_tokens=20, temperature=0))
        told: Any = [item async for item in conversation.generate(request)][-1]
        results["the answer to its result"] = (bool(told.text), repr(told.text))
    return results


if __name__ == "__main__":
    sys.exit(main())
