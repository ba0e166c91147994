"""Whether two models speak the same tokens, so that one can guess for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.models.config_keys import read_json_object
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


def require_same_tokens(directory: Path, small: Path) -> None:
    """Raise EngineError EN230 unless the models in two directories have equal token ids.

    EN111 for a tokenizer.json that is no JSON object.
    """
    if _ids(directory) != _ids(small):
        raise EngineError(
            "EN230",
            f"the draft model {str(small)!r} has other tokens than {str(directory)!r}",
            help="take a smaller model of the same family, or leave draft_model out",
        )


def _ids(directory: Path) -> object:
    path = directory / "tokenizer.json"
    described = read_json_object(path) if path.is_file() else {}
    model = described.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if vocab is None:
        raise EngineError(
            "EN230",
            f"{str(directory)!r} has no tokenizer.json with a vocabulary to compare token ids by",
            help="draft_model needs two models with a tokenizer.json",
        )
    added = described.get("added_tokens") or []
    return vocab, {(one.get("id"), one.get("content")) for one in added}
