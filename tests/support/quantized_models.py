"""Small random models whose matrices a GGUF file had in few bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gguf_files import TOKENS, GgufSettings, write_gguf
from random_models import random_model

from flowforge.engine.models.gguf_conversion import convert_gguf

if TYPE_CHECKING:
    from pathlib import Path

    import gguf


def converted(
    directory: Path,
    kinds: dict[str, gguf.GGMLQuantizationType],
    vocab_size: int = len(TOKENS),
) -> Path:
    """The folder of a converted file, which is m.gguf beside it. kinds: as in `GgufSettings`."""
    model = random_model(
        "Llama",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=0,
    )
    write_gguf(directory / "m.gguf", model, GgufSettings(kinds=kinds))
    convert_gguf(directory / "m.gguf", directory / "out")
    return directory / "out"
