"""Requests written down, for a bench to send them again: one JSON object a line.

Each has `time_s` since the recording began, `path`, `body` and, once it was answered, `usage`. The
bodies hold prompts, so the file is its owner's alone.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from flowforge.serving.generation import Cost


class Recorder:
    """Owns the file from enter to exit; what is there already is kept, and added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started_at_s = time.monotonic()

    def __enter__(self) -> Self:
        """Open the file. Raises EngineError EN912."""
        try:
            number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise EngineError(
                "EN912",
                f"requests cannot be recorded in {str(self._path)!r}: {error.strerror}",
                help="--record takes a file that can be written",
            ) from error
        self._file = os.fdopen(number, "a", encoding="utf-8", errors="replace")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def now_s(self) -> float:
        """Seconds since the recording began."""
        return time.monotonic() - self._started_at_s

    def take(self, time_s: float, path: str, body: bytes, cost: Cost | None) -> None:
        """Write a request down. cost: None where it was not answered to its end."""
        told = {
            "time_s": round(time_s, 6),
            "path": path,
            "body": json.loads(body),
            "usage": None if cost is None else cost.as_usage(),
        }
        self._file.write(json.dumps(told, ensure_ascii=False) + "\n")
        self._file.flush()
