"""Converted tensors lie in the order that the decoder fuses them, or loading copies them."""

from __future__ import annotations

import pytest

from flowforge.engine.models.families import FAMILIES, Family
from flowforge.engine.models.gguf_names import placed_tensors

FUSED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))


@pytest.mark.parametrize("family", [one for one in FAMILIES.values() if not one.stores_fused])
@pytest.mark.parametrize("suffix", ["weight", "bias"])
def test_what_is_fused_lies_side_by_side(family: Family, suffix: str) -> None:
    kinds = [
        *("ffn_down", "ffn_up", "ffn_norm", "ffn_gate", "attn_v", "attn_output", "attn_k"),
        *("attn_norm", "attn_q", "attn_q_norm", "attn_k_norm", "post_ffw_norm"),
    ]
    places = {}
    for kind in kinds:
        placed = placed_tensors(f"blk.1.{kind}.{suffix}", family, 0)
        if placed is not None:
            places[kind] = placed[0].place

    order = sorted(places, key=places.__getitem__)

    for fused in FUSED:
        start = order.index(fused[0])
        assert list(fused) == order[start : start + len(fused)]
