"""Orders to a run that goes on, from any process of its owner."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
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
    folder = private_folder()
    if folder is None:
        raise EngineError(
            "EN708",
            f"a run needs a folder of this user alone in {tempfile.gettempdir()!r}, and the one of "
            "its name there is open to others",
            help="remove it, or set TMPDIR to another folder",
        )
    name = blake2b(os.fsencode(beside), digest_size=12).hexdigest()
    return folder / f"{name}.sock"


def private_folder() -> Path | None:
    """The folder among the temporary ones that only this user can read, made if it is not there.

    None where somebody else has laid a folder or a link of its name there, or opened it.
    """
    folder = Path(tempfile.gettempdir()) / f"flowforge-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_own and not found.st_mode & 0o077 else None
