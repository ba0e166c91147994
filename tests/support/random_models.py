"""Small random models of transformers, of any family."""

from __future__ import annotations

from typing import Any

import torch
import transformers


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
