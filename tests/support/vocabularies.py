"""The default model's tokenizer and its vocabulary for constraints, built once for all tests."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.grammars import Vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.constraint import TokenConstraint


@lru_cache(maxsize=1)
def default_tokenizer(directory: Path) -> Tokenizer:
    """Of the model in `directory`."""
    return Tokenizer.from_directory(directory)


@lru_cache(maxsize=1)
def default_vocabulary(directory: Path) -> Vocabulary:
    """As wide as the tokenizer."""
    tokenizer = default_tokenizer(directory)
    return Vocabulary(
        tokenizer.tokenizer_json, eos_ids=tokenizer.eos_ids, vocab_size=tokenizer.vocab_size
    )


def allowed_ids(state: TokenConstraint, vocab_size: int) -> list[int]:
    """The tokens that a constraint's mask allows now, in order."""
    words = np.full(-(-vocab_size // 32), 0xFFFFFFFF, dtype=np.uint32)
    state.fill_mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    allowed: list[int] = np.flatnonzero(bits).tolist()
    return allowed
