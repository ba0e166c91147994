"""Small random models of transformers, of any family."""

from __future__ import annotations

from typing import Any

import torch
import transformers

# transformers brings models in when they are first named: seconds, which would count as a test's.
import transformers.models.llama.modeling_llama  # pyright: ignore[reportUnusedImport]  # as said


def random_model(family: str, **settings: Any) -> Any:
    """A model whose attention is written out: fused implementations have no score caps."""
    config_class = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, config_class)(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        # Biases and norms start as zeros and ones, which would hide a wrong one.
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tiny_model(family: str, **settings: Any) -> Any:
    """Two layers over 120 ids: for tests of the engine, which need some model."""
    shape: dict[str, Any] = {
        "vocab_size": 120,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    return random_model(family, **(shape | settings))


def tiny_llama(**settings: Any) -> Any:
    """`tiny_model` of the family that most tests take."""
    return tiny_model("Llama", **settings)


def small_llama(**settings: Any) -> Any:
    """Wide enough for groups of quantised weights, with two heads of queries to one of keys."""
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
    }
    return tiny_llama(**(shape | settings))
