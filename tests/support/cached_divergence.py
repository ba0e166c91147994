"""How far what the model says moves when the beginning of a text comes from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoder_runs import empty_rows, paged_logits
from torch.nn.functional import kl_div

if TYPE_CHECKING:
    import torch

    from flowforge.engine.models.decoder import Decoder


def divergences(
    decoder: Decoder, token_ids: torch.Tensor, prefix_len: int, chunk_len: int
) -> torch.Tensor:
    """KL(uncached | cached) in nats, float32 [tokens behind the prefix].

    Uncached: the whole text in one pass. Cached: the prefix in chunks, by an earlier request, and
    the rest in one pass that reads its rows.
    """
    uncached = paged_logits(decoder, token_ids, len(token_ids))[prefix_len:].log_softmax(-1)
    rows = empty_rows(decoder)
    paged_logits(decoder, token_ids[:prefix_len], chunk_len, rows)
    rest = paged_logits(decoder, token_ids, len(token_ids), rows, start=prefix_len)
    cached = rest.log_softmax(-1)
    return kl_div(cached, uncached, reduction="none", log_target=True).sum(-1)
