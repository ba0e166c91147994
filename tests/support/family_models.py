"""Small random models of every family and setting that the engine knows."""

from __future__ import annotations

from typing import Any

from random_models import random_model

SHAPE: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Wide enough weights that attention and rotation show in the logits.
    "initializer_range": 0.2,
}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
_LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
_YARN: dict[str, Any] = _LINEAR | {"rope_type": "yarn", "original_max_position_embeddings": 32}
_HALF: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.0, 3.0, 4.0],
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 3,
    "head_dim": 8,
}
_WINDOW: dict[str, Any] = {"sliding_window": 19}
_SAID_WINDOW: dict[str, Any] = _WINDOW | {"use_sliding_window": True}
_GEMMA: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 24}
_CAPS: dict[str, Any] = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
_ALTERNATING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, grouped heads": ("Llama", {}),
    "llama, all heads": ("Llama", {"num_key_value_heads": 6}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("Llama", {"head_dim": 16}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": _LINEAR}),
    "llama, dynamic rope": ("Llama", {"rope_parameters": DYNAMIC}),
    "llama, yarn rope": ("Llama", {"rope_parameters": _YARN}),
    "llama, untruncated yarn rope": ("Llama", {"rope_parameters": _YARN | {"truncate": False}}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "mistral, window": ("Mistral", _WINDOW),
    "qwen2": ("Qwen2", {}),
    "qwen2, window": ("Qwen2", _SAID_WINDOW | {"max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, window": ("Qwen3", _SAID_WINDOW | {"head_dim": 16, "max_window_layers": 2}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3, window": ("SmolLM3", _SAID_WINDOW | {"no_rope_layer_interval": 2}),
    "phi3": ("Phi3", {}),
    "phi3, window": ("Phi3", _WINDOW),
    "phi3, half of each head turns": ("Phi3", {"rope_parameters": _HALF}),
    "phi3, short longrope": (
        "Phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", _GEMMA | _CAPS | _WINDOW),
    "gemma2, no caps": (
        "Gemma2",
        _GEMMA | _WINDOW | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("Gemma3", _GEMMA | _WINDOW | _ALTERNATING),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mixtral, window": ("Mixtral", _WINDOW | {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", _EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3_moe, window": ("Qwen3Moe", _EXPERTS | _SAID_WINDOW),
}
FAMILIES = [name for name in MODELS if "," not in name] + ["llama, grouped heads"]


def sized_model(family: str, settings: dict[str, Any]) -> Any:
    """A model of three small layers."""
    return random_model(family, **(SHAPE | settings))


def family_model(name: str) -> Any:
    """The model of a name in `MODELS`."""
    return sized_model(*MODELS[name])
