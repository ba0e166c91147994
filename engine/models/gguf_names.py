"""What GGUF tensors are called in a Hugging Face model, and which of them hold several matrices.

Source of the names: the tensor tables of llama.cpp's `gguf` package (MIT).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.models.families import Family

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_POST_NORM_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FUSED_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# By the name of the family: the router, and where an expert's gate, up and down are.
_EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts.{}.", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp.gate", "mlp.experts.{}.", ("gate_proj", "up_proj", "down_proj")),
}
_EXPERT_TENSORS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
# The order inside a layer; what the decoder fuses lies side by side.
_LAYER_ORDER = list(
    dict.fromkeys(
        (*_LAYER_NAMES, *_POST_NORM_NAMES, *_FUSED_NAMES, "ffn_gate_inp", *_EXPERT_TENSORS)
    )
)
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, order=True)
class Placed:
    """One Hugging Face tensor of a GGUF tensor.

    place: where it comes in the converted file. part: which matrix of the GGUF tensor it is; None
    for all of it. rows_of: "q" or "k" for rows of heads, which some files have in another order.
    """

    place: tuple[int, int, int, int, str]
    name: str
    part: int | None = None
    rows_of: str | None = None


def placed_tensors(gguf_name: str, family: Family, num_experts: int) -> list[Placed] | None:
    """What a GGUF tensor is in a model of this family; None for one that it does not have."""
    match = _LAYER_TENSOR.fullmatch(gguf_name)
    if match is None:
        name = _GLOBAL_NAMES.get(gguf_name)
        return None if name is None else [Placed((-1, 0, 0, 0, gguf_name), name)]
    layer_idx, kind, suffix = int(match[1]), match[2], match[3]
    prefix = f"model.layers.{layer_idx}."
    if kind in _EXPERT_TENSORS and family.name in _EXPERT_NAMES:
        return _experts(layer_idx, kind, prefix, family, num_experts)
    name = _layer_names(family).get(kind)
    if name is None:
        return None
    place = (layer_idx, int(suffix == "bias"), _LAYER_ORDER.index(kind), 0, gguf_name)
    rows_of = {"attn_q": "q", "attn_k": "k"}.get(kind)
    return [Placed(place, f"{prefix}{name}.{suffix}", rows_of=rows_of)]


def _layer_names(family: Family) -> dict[str, str]:
    names = dict(_LAYER_NAMES)
    if family.has_post_norms:
        names |= _POST_NORM_NAMES
    if family.stores_fused:
        names |= _FUSED_NAMES
    if family.name in _EXPERT_NAMES:
        names["ffn_gate_inp"] = _EXPERT_NAMES[family.name][0]
    return names


def _experts(
    layer_idx: int, kind: str, prefix: str, family: Family, num_experts: int
) -> list[Placed]:
    """Gate and up of each expert side by side, then every down: as the decoder reads them."""
    _, expert, matrices = _EXPERT_NAMES[family.name]
    which = _EXPERT_TENSORS.index(kind)
    order = _LAYER_ORDER.index("ffn_down_exps" if which == 2 else "ffn_gate_exps")
    return [
        Placed(
            (layer_idx, 0, order, 2 * idx + which % 2, kind),
            f"{prefix}{expert.format(idx)}{matrices[which]}.weight",
            part=idx,
        )
        for idx in range(num_experts)
    ]
