"""A model directory with random weights of a given shape: as slow as a real one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import torch


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Of a Llama decoder with tied embeddings."""

    num_layers: int
    hidden_size: int
    mlp_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int


SHAPES = {
    "tiny": ModelShape(2, 32, 64, 4, 2, 4096),
    "small": ModelShape(2, 576, 1536, 9, 3, 4096),
    "smollm2-135m": ModelShape(30, 576, 1536, 9, 3, 49152),
}
CONTEXT_LEN = 16_384


def write_random_model(directory: Path, shape: ModelShape, seed: int = 0) -> None:
    """Write config.json and model.safetensors, in float32."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def matrix(num_rows: int, num_columns: int) -> torch.Tensor:
        scale = float(num_columns) ** -0.5
        return torch.randn(num_rows, num_columns, generator=generator).mul(scale)

    hidden, head_dim = shape.hidden_size, shape.hidden_size // shape.num_heads
    kv_size = shape.num_kv_heads * head_dim
    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocab_size, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for idx in range(shape.num_layers):
        layer = {
            "input_layernorm": torch.ones(hidden),
            "post_attention_layernorm": torch.ones(hidden),
            "self_attn.q_proj": matrix(hidden, hidden),
            "self_attn.k_proj": matrix(kv_size, hidden),
            "self_attn.v_proj": matrix(kv_size, hidden),
            "self_attn.o_proj": matrix(hidden, hidden),
            "mlp.gate_proj": matrix(shape.mlp_size, hidden),
            "mlp.up_proj": matrix(shape.mlp_size, hidden),
            "mlp.down_proj": matrix(hidden, shape.mlp_size),
        }
        tensors |= {f"model.layers.{idx}.{name}.weight": one for name, one in layer.items()}
    save_file(tensors, directory / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": shape.mlp_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": CONTEXT_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
