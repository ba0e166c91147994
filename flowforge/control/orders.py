"""Orders to a run that goes on, from any process of its owner."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flowforge.errors import EngineError

TIMEOUT_S = 5.0
"""How long an order and its reply may take."""

_MAX_PATH_BYTES = 100
"""Of a socket's name: the system allows a little more."""


def send_order(journal: Path, run_id: str, **order: object) -> dict[str, Any]:
    """Send an order to a run and return its reply.

    Raises EngineError EN708 for a run that nobody has, or that refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(socket_path(journal, run_id)))
            connection.sendall(json.dumps(order, ensure_ascii=False).encode() + b"\n")
            with connection.makefile("rb") as answer:
                reply: dict[str, Any] = json.loads(answer.readline())
    except (OSError, ValueError) as error:
        raise EngineError(
            "EN708",
            f"run {run_id!r} cannot be reached: it is not going on",
            help="'flowforge ps' lists the runs that are",
        ) from error
    if not reply["ok"]:
        raise EngineError(
            "EN708", f"run {run_id!r} refuses: {reply['reason']}", help=reply.get("help")
        )
    return reply


def socket_path(journal: Path, run_id: str) -> Path:
    """Where a run listens: beside its lease, or in a folder of ours if that name is too long."""
    beside = journal.with_name(f"{journal.name}.locks") / f"{run_id}.sock"
    if len(os.fsencode(beside)) <= _MAX_PATH_BYTES:
        return beside
    folder = Path(tempfile.gettempdir()) / f"flowforge-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise EngineError("EN708", f"the folder {str(folder)!r} is open to others")
    name = blake2b(os.fsencode(beside), digest_size=12).hexdigest()
    return folder / f"{name}.sock"
