"""What the tensors of a decoder are called in a checkpoint, by family. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.models.config import ModelConfig

EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
FINAL_NORM, ATTENTION_NORM = "model.norm.weight", "input_layernorm"


@dataclass(frozen=True, slots=True)
class NormNames:
    """The norms of a layer behind the first; Gemma 2 uses the usual name of one for another."""

    mlp: str
    attention_post: str | None = None
    mlp_post: str | None = None


def norm_names(config: ModelConfig) -> NormNames:
    """Of the norms of a layer behind the first."""
    if not config.family.has_post_norms:
        return NormNames("post_attention_layernorm")
    return NormNames(
        "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
    )


def qkv_names(config: ModelConfig) -> tuple[str, ...]:
    """Of the matrices that give Q, K and V: one, or three."""
    return ("qkv_proj",) if config.family.stores_fused else ("q_proj", "k_proj", "v_proj")


def gate_up_names(config: ModelConfig) -> tuple[str, ...]:
    """Of the matrices that give gate and up: one, or two."""
    return ("gate_up_proj",) if config.family.stores_fused else ("gate_proj", "up_proj")


def experts_name(config: ModelConfig) -> str:
    """Of the part of a layer that holds its experts and their router."""
    return "block_sparse_moe" if config.family.name == "mixtral" else "mlp"


def expert_matrix_names(config: ModelConfig) -> tuple[str, str, str]:
    """Of an expert: gate, up, down."""
    is_mixtral = config.family.name == "mixtral"
    return ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")


def is_linear(name: str) -> bool:
    """Whether a tensor is the matrix of a product: no embedding, norm, router or expert."""
    module, _, kind = name.rpartition(".")
    matrix = module.rpartition(".")[2]
    is_matrix = kind == "weight" and (matrix.endswith("_proj") or name == LM_HEAD)
    return is_matrix and ".experts." not in name
