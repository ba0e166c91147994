"""What each family of decoders brings that its config.json does not say. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FamilyName = Literal[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3_text",
]
# Which layers attend through the configured window: none; all of them; all if use_sliding_window
# says so; those that layer_types lists, which by default are the ones named here.
WindowRule = Literal["none", "all", "all if said", "upper", "without rope", "alternating"]


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table below; each field is off for a plain Llama.

    architecture: as config.json names it. has_qkv_bias: always, whatever attention_bias says.
    window_period: of "alternating" layers, the last of each period attends to all.
    is_tied: the value of tie_word_embeddings where config.json leaves it out.
    has_gemma_numerics: embeddings are scaled by √hidden_size, norms multiply by 1 + weight in
    float32, the gate is GELU (tanh). has_post_norms: norms behind attention and MLP as well.
    stores_fused: Q, K, V and gate, up are stored as one matrix each.
    nope_period: the last layer of each period has no position encoding.
    """

    name: FamilyName
    architecture: str
    window_rule: WindowRule = "none"
    window_period: int = 0
    is_tied: bool = False
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_gemma_numerics: bool = False
    has_post_norms: bool = False
    has_experts: bool = False
    stores_fused: bool = False
    nope_period: int | None = None
    default_theta: float = 10000.0


_TABLE = (
    Family("llama", "LlamaForCausalLM"),
    Family("mistral", "MistralForCausalLM", "all"),
    Family("mixtral", "MixtralForCausalLM", "all", has_experts=True, default_theta=1e6),
    Family("qwen2", "Qwen2ForCausalLM", "upper", has_qkv_bias=True),
    Family("qwen3", "Qwen3ForCausalLM", "upper", has_qk_norm=True),
    Family("qwen3_moe", "Qwen3MoeForCausalLM", "all if said", has_qk_norm=True, has_experts=True),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        "without rope",
        is_tied=True,
        nope_period=4,
        default_theta=2e6,
    ),
    Family("phi3", "Phi3ForCausalLM", "all", stores_fused=True),
    Family("gemma", "GemmaForCausalLM", is_tied=True, has_gemma_numerics=True),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        "alternating",
        window_period=2,
        is_tied=True,
        has_gemma_numerics=True,
        has_post_norms=True,
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        "alternating",
        window_period=6,
        is_tied=True,
        has_qk_norm=True,
        has_gemma_numerics=True,
        has_post_norms=True,
        default_theta=1e6,
    ),
)
FAMILIES = {family.name: family for family in _TABLE}
ARCHITECTURES = {family.architecture: family for family in _TABLE}
