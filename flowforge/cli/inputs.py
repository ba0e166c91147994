"""The inputs of a run, from `--inputs FILE` and `-i NAME=VALUE`; the latter win."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flowforge.language.program import JsonValue


def read_inputs(pairs: Sequence[str], file: Path | None) -> dict[str, JsonValue]:
    """The inputs as given. Raises WorkflowError WF520."""
    given = {} if file is None else _read_file(file)
    return {**given, **dict(map(_split_pair, pairs))}


def _split_pair(pair: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not equals or not name:
        raise WorkflowError(
            "WF520", f"expected -i NAME=VALUE, got {pair!r}", help='for example -i topic="bicycles"'
        )
    return name, text


def _read_file(file: Path) -> dict[str, JsonValue]:
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkflowError(
            "WF520",
            f"the inputs file {str(file)!r} cannot be read: {error}",
            help='it holds one JSON object, for example { "topic": "bicycles" }',
        ) from error
    if not isinstance(given, dict):
        raise WorkflowError(
            "WF520",
            f"the inputs file {str(file)!r} must hold a JSON object, got {type(given).__name__}",
            help='for example { "topic": "bicycles" }',
        )
    return given
