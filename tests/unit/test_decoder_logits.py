"""The decoder against transformers, on small random models of every family and setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from decoder_runs import dense_logits, greedy_ids, paged_logits
from random_models import random_model

from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.weights import load_decoder

if TYPE_CHECKING:
    from pathlib import Path

# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4
# More than two windows and more than three pages of 16.
TEXT_LEN = 52

_SHAPE: dict[str, Any] = {
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
_DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
_YARN: dict[str, Any] = _LINEAR | {"rope_type": "yarn", "original_max_position_embeddings": 32}
_HALF: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
}
_LONGROPE: dict[str, Any] = {
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

_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, grouped heads": ("Llama", {}),
    "llama, all heads": ("Llama", {"num_key_value_heads": 6}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("Llama", {"head_dim": 16}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": _LINEAR}),
    "llama, dynamic rope": ("Llama", {"rope_parameters": _DYNAMIC}),
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
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64},
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
_FAMILIES = [name for name in _MODELS if "," not in name] + ["llama, grouped heads"]


def _build(family: str, settings: dict[str, Any]) -> Any:
    return random_model(family, **(_SHAPE | settings))


def _random_model(name: str) -> Any:
    return _build(*_MODELS[name])


def _text(length: int = TEXT_LEN) -> torch.Tensor:
    return torch.randint(0, 120, (length,), generator=torch.Generator().manual_seed(1))


def _reference_logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return cast("torch.Tensor", model(token_ids[None]).logits[0])


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return (left - right).abs().max().item()


@pytest.mark.parametrize("name", _MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = _random_model(name)
    model.save_pretrained(tmp_path)
    expected = _reference_logits(model, _text())

    decoder = load_decoder(tmp_path, dtype=torch.float32)

    assert expected.std() > 0.1  # logits with something to tell apart
    assert _distance(expected, dense_logits(decoder, _text())) < TOLERANCE
    for chunk_len in (1, 7, 64):
        assert _distance(expected, paged_logits(decoder, _text(), chunk_len)) < TOLERANCE


@pytest.mark.parametrize("name", _FAMILIES)
def test_greedy_ids_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = _random_model(name)
    model.save_pretrained(tmp_path)
    prompt = _text(23)
    model.generation_config.eos_token_id = None
    expected = model.generate(
        prompt[None],
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=16,
        eos_token_id=None,
    )

    found = greedy_ids(load_decoder(tmp_path, dtype=torch.float32), prompt, 16)

    assert expected[0, len(prompt) :].tolist() == found


@pytest.mark.parametrize("name", [name for name in _MODELS if name.endswith("window")])
def test_a_window_changes_only_what_is_behind_it(name: str, tmp_path: Path) -> None:
    _random_model(name).save_pretrained(tmp_path / "windowed")
    family, settings = _MODELS[name]
    window = settings["sliding_window"]
    decoder = load_decoder(tmp_path / "windowed", dtype=torch.float32)
    near, far = _text(), _text()
    far[0] = (far[0] + 1) % 120

    difference = (dense_logits(decoder, near) - dense_logits(decoder, far)).abs().amax(-1)

    assert difference[window - 1] > TOLERANCE  # the first token is the last that is seen
    if family in ("Mistral", "Phi3", "Mixtral", "Qwen3Moe"):  # where no layer sees everything
        hidden_behind = 3 * (window - 1) + 1
        assert difference[hidden_behind:].numel() == 0 or difference[hidden_behind:].max() == 0


def test_longrope_loaded_for_long_texts_equals_transformers_on_one(tmp_path: Path) -> None:
    settings = {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32}
    model = _build("Phi3", settings)
    model.save_pretrained(tmp_path)
    assert read_model_config(tmp_path).max_context_len == 32
    config = read_model_config(tmp_path, context_len=TEXT_LEN)

    decoder = load_decoder(tmp_path, config, dtype=torch.float32)

    expected = _reference_logits(model, _text())
    assert _distance(expected, paged_logits(decoder, _text(), 7)) < TOLERANCE


def test_dynamic_rope_equals_transformers_on_a_text_of_the_length_it_is_loaded_for(
    tmp_path: Path,
) -> None:
    model = _build("Llama", {"rope_parameters": _DYNAMIC, "max_position_embeddings": 32})
    model.save_pretrained(tmp_path)
    config = read_model_config(tmp_path, context_len=TEXT_LEN)

    decoder = load_decoder(tmp_path, config, dtype=torch.float32)

    expected = _reference_logits(model, _text())
    assert _distance(expected, paged_logits(decoder, _text(), 7)) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, grouped heads", "mixtral", "gemma2"])
def test_sequences_of_one_step_do_not_see_each_other(name: str, tmp_path: Path) -> None:
    _random_model(name).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, dtype=torch.float32)
    first, second = torch.arange(5), torch.arange(30, 37)
    alone = torch.cat([dense_logits(decoder, first), dense_logits(decoder, second)])

    together = dense_logits(decoder, first, second)

    assert _distance(alone, together) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, grouped heads", "mixtral", "gemma3"])
def test_bfloat16_weights_give_float32_logits_near_those_of_float32(
    name: str, tmp_path: Path
) -> None:
    model = _random_model(name)
    model.save_pretrained(tmp_path)
    exact = _reference_logits(model, _text(20))

    found = dense_logits(load_decoder(tmp_path, dtype=torch.bfloat16), _text(20))

    assert found.dtype == torch.float32
    # bfloat16 keeps 8 bits: a few percent of the logits' spread.
    assert _distance(exact, found) < 0.1 * exact.abs().max().item()


def test_repr_names_the_model_and_no_tensor(tmp_path: Path) -> None:
    _random_model("qwen3").save_pretrained(tmp_path)

    shown = repr(load_decoder(tmp_path, dtype=torch.float32))

    assert shown == "Decoder(qwen3, 3 layers × 48, torch.float32, cpu)"
