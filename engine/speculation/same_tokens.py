"""Whether two models speak the same tokens, so that one can guess for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.model_store import resolve_model
from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.config_keys import read_json_object
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


def draft_directory(directory: Path, spec: str) -> Path:
    """Where the model is that is to guess for the one in `directory`, fetched if need be.

    spec: as `resolve_model` takes it. Raises EngineError as that does and as
    `require_same_tokens`.
    """
    try:
        small = resolve_model(spec).directory
        # A folder without it is no model and has nothing else to tell.
        read_model_config(small)
    except EngineError as error:
        message = f"the draft model {spec!r} cannot be had: {error.message}"
        raise EngineError(error.code, message, help=error.help) from error
    require_same_tokens(directory, small)
    return small


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
