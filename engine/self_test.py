"""Whether a text has the same bits whatever is computed beside it: tried once, at the start.

That it is so by construction is the tests' to show, on the machines that they run on. This looks at
the processor, compiler and weights at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.compiled import CompiledAttention, find_attention_library
from flowforge.engine.attention.reads import Span

if TYPE_CHECKING:
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary

# More rows together than the kernels hold in registers, which is where they differ.
_LENGTHS = (5, 1, 3)


@torch.inference_mode()
def has_same_bits(decoder: Decoder) -> bool:
    """Whether three short texts have the same logits together and alone.

    False without a try where a step's kernels depend on how many rows it has. Takes as long as four
    short steps.
    """
    library = find_attention_library()
    if library is None or not decoder.has_one_way:
        return False
    together = _logits(decoder, library, _LENGTHS, 0)
    starts = [sum(_LENGTHS[:idx]) for idx in range(len(_LENGTHS))]
    alone = [
        _logits(decoder, library, (length,), start)
        for length, start in zip(_LENGTHS, starts, strict=True)
    ]
    return torch.equal(together, torch.cat(alone))


def _logits(
    decoder: Decoder, library: AttentionLibrary, lengths: tuple[int, ...], first_id: int
) -> torch.Tensor:
    """Of fresh texts in one step, which all ids from the first on are laid out in."""
    config, num_tokens = decoder.config, sum(lengths)
    rows = torch.zeros((config.num_layers, 2, config.num_kv_heads, num_tokens, config.head_dim))
    spans: list[Span] = []
    positions: list[int] = []
    for length in lengths:
        spans.append(Span(len(positions), length, ((len(positions), length),)))
        positions += range(length)
    ids = (torch.arange(first_id, first_id + num_tokens) + 1) % config.vocab_size
    attention = CompiledAttention(library, rows, torch.arange(num_tokens), tuple(spans))
    return decoder.logits(decoder.forward(ids, torch.tensor(positions), attention))
