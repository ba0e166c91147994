"""Small random models whose matrices a GGUF file had in few bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gguf_files import TOKENS, GgufSettings, write_gguf
from random_models import small_llama

from flowforge.engine.models.gguf_conversion import convert_gguf

if TYPE_CHECKING:
    from pathlib import Path

    import gguf


def converted(
    directory: Path, kinds: dict[str, gguf.GGMLQuantizationType], **settings: Any
) -> Path:
    """The folder of a converted file, which is m.gguf beside it.

    kinds: as in `GgufSettings`. settings: of the model, where they are not those of `small_llama`.
    """
    model = small_llama(**({"vocab_size": len(TOKENS), "max_position_embeddings": 64} | settings))
    write_gguf(directory / "m.gguf", model, GgufSettings(kinds=kinds))
    convert_gguf(directory / "m.gguf", directory / "out")
    return directory / "out"
