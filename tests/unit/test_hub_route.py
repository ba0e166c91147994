"""The hub route against a small server that speaks the hub's protocol on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 100,
    "onnx/model.json": b"another format",
    "pytorch_model.bin": b"a pickle",
}

_RESOLVE = """
    import json, sys
    from pathlib import Path
    from flowforge.engine.model_store import resolve_model
    from flowforge.errors import EngineError

    try:
        model = resolve_model(sys.argv[1], root=Path(sys.argv[2]))
    except EngineError as error:
        print(json.dumps({"code": error.code, "help": error.help}))
    else:
        files = sorted(path.name for path in model.directory.rglob("*") if path.is_file())
        print(json.dumps({"revision": model.revision, "source": model.source, "files": files}))
"""


class _Hub(BaseHTTPRequestHandler):
    """Answers for org/name only; everything else is unknown, and org/proxied is forbidden."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""

    def _answer(self, *, with_body: bool) -> None:
        address = self.path.partition("?")[0]
        file = address.rpartition(f"/resolve/{_COMMIT}/")[2]
        if address.startswith("/api/models/org/proxied"):
            self._send(403, b"{}", {}, with_body=with_body)
        elif address.startswith("/api/models/org/name/tree"):
            tree = [self._entry(name) for name in _FILES]
            self._send(200, json.dumps(tree).encode(), {}, with_body=with_body)
        elif address.startswith("/api/models/org/name"):
            self._send(200, json.dumps(self._info()).encode(), {}, with_body=with_body)
        elif address.startswith("/org/name/resolve/") and file in _FILES:
            content = _FILES[file]
            headers = {"ETag": f'"{_blob(content)}"', "X-Repo-Commit": _COMMIT}
            self._send(200, content, headers, with_body=with_body)
        else:
            headers = {"X-Error-Code": "RepoNotFound"}
            self._send(404, b"{}", headers, with_body=with_body)

    def _entry(self, name: str) -> dict[str, object]:
        content = _FILES[name]
        return {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}

    def _info(self) -> dict[str, object]:
        siblings = [{"rfilename": name, "size": len(_FILES[name])} for name in _FILES]
        return {"id": "org/name", "sha": _COMMIT, "siblings": siblings}

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _blob(content: bytes) -> str:
    """Git's id of a file, which the hub gives as its ETag."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _running(server: ThreadingHTTPServer) -> Generator[str]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def hub_address() -> Generator[str]:
    with _running(ThreadingHTTPServer(("127.0.0.1", 0), _Hub)) as address:
        yield address


def _resolve(spec: str, root: Path, address: str) -> dict[str, object]:
    # The hub client reads its address when it is imported, hence a process of its own.
    settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(root / "hf")}
    shown = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_RESOLVE), spec, str(root)],
        env=os.environ | settings | {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    answer: dict[str, object] = json.loads(shown.stdout)
    return answer


def test_hub_model_is_fetched_whole_at_the_commit_its_name_means_now(
    tmp_path: Path, hub_address: str
) -> None:
    answer = _resolve("org/name", tmp_path, hub_address)

    assert answer == {
        "revision": _COMMIT,
        "source": "hub",
        "files": ["config.json", "flowforge-model.json", "model.safetensors"],
    }
    folder = tmp_path / "models" / f"org--name@{_COMMIT}"
    assert (folder / "model.safetensors").read_bytes() == _FILES["model.safetensors"]


def test_unknown_hub_model_is_an_error_and_leaves_nothing(tmp_path: Path, hub_address: str) -> None:
    answer = _resolve("org/nam", tmp_path, hub_address)

    assert answer["code"] == "EN102"
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("address", ["forbidden by a proxy", "nobody listens"])
def test_hub_that_cannot_be_reached_is_an_error_of_its_own(
    tmp_path: Path, hub_address: str, address: str
) -> None:
    reached = hub_address if "proxy" in address else "http://127.0.0.1:1"

    assert _resolve("org/proxied", tmp_path, reached)["code"] == "EN103"
