"""The decoder against transformers, on small random models of every family and setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
import transformers

from flowforge.engine.attention.reference import DenseAttention
from flowforge.engine.models.weights import load_decoder

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.models.decoder import Decoder

# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4

_SHAPE: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
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
_DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}

_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, grouped heads": ("Llama", {}),
    "llama, all heads": ("Llama", {"num_key_value_heads": 6}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("Llama", {"head_dim": 16}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": _LINEAR}),
    "llama, dynamic rope": ("Llama", {"rope_parameters": _DYNAMIC}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def _random_model(name: str) -> Any:
    family, settings = _MODELS[name]
    config = getattr(transformers, f"{family}Config")(**(_SHAPE | settings))
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        # Biases and norms start as zeros and ones, which would hide a wrong one.
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def _decoder_logits(decoder: Decoder, *sequences: torch.Tensor) -> torch.Tensor:
    lens = [len(sequence) for sequence in sequences]
    positions = torch.cat([torch.arange(length) for length in lens])
    with torch.inference_mode():
        hidden = decoder.forward(torch.cat(sequences), positions, DenseAttention(lens))
        return decoder.logits(hidden)


def _reference_logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return cast("torch.Tensor", model(token_ids[None]).logits[0])


@pytest.mark.parametrize("name", _MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = _random_model(name)
    model.save_pretrained(tmp_path)
    token_ids = torch.randint(0, 120, (40,), generator=torch.Generator().manual_seed(1))
    expected = _reference_logits(model, token_ids)

    found = _decoder_logits(load_decoder(tmp_path, dtype=torch.float32), token_ids)

    assert expected.std() > 0.1  # logits with something to tell apart
    assert (expected - found).abs().max().item() < TOLERANCE


def test_sequences_of_one_step_do_not_see_each_other(tmp_path: Path) -> None:
    _random_model("llama, grouped heads").save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, dtype=torch.float32)
    first, second = torch.arange(5), torch.arange(30, 37)
    alone = torch.cat([_decoder_logits(decoder, first), _decoder_logits(decoder, second)])

    together = _decoder_logits(decoder, first, second)

    assert (alone - together).abs().max().item() < TOLERANCE


def test_bfloat16_weights_give_float32_logits_near_those_of_float32(tmp_path: Path) -> None:
    model = _random_model("llama, grouped heads")
    model.save_pretrained(tmp_path)
    token_ids = torch.arange(20)
    exact = _reference_logits(model, token_ids)

    found = _decoder_logits(load_decoder(tmp_path, dtype=torch.bfloat16), token_ids)

    assert found.dtype == torch.float32
    # bfloat16 keeps 8 bits: a few percent of the logits' spread.
    assert (exact - found).abs().max().item() < 0.1 * exact.abs().max().item()


def test_repr_names_the_model_and_no_tensor(tmp_path: Path) -> None:
    _random_model("qwen3").save_pretrained(tmp_path)

    shown = repr(load_decoder(tmp_path, dtype=torch.float32))

    assert shown == "Decoder(qwen3, 3 layers × 48, torch.float32, cpu)"
