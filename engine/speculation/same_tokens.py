"""Whether two models speak the same tokens, so that one can guess for the other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


def require_same_tokens(directory: Path, small: Path) -> None:
    """Raise EngineError EN230 unless the models in two directories have equal token ids."""
    if _ids(directory) != _ids(small):
        raise EngineError(
            "EN230",
            f"the draft model {str(small)!r} has other tokens than {str(directory)!r}",
            help="take a smaller model of the same family, or leave draft_model out",
        )


def _ids(directory: Path) -> object:
    try:
        text = (directory / "tokenizer.json").read_text("utf-8")
    except OSError as error:
        raise EngineError(
            "EN230",
            f"{str(directory)!r} has no tokenizer.json to compare token ids by: {error.strerror}",
            help="draft_model needs two models with a tokenizer.json",
        ) from error
    described: dict[str, Any] = json.loads(text)
    added = {(one["id"], one["content"]) for one in described.get("added_tokens", [])}
    return described["model"].get("vocab"), added
