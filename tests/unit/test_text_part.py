"""Models that also see images load as models of text: Gemma 3, in both spellings of its files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from decoder_runs import dense_logits
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.weight_size import weight_size
from flowforge.engine.models.weights import load_decoder

if TYPE_CHECKING:
    from pathlib import Path

TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "initializer_range": 0.2,
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    config = Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)
    config._attn_implementation = "eager"  # pyright: ignore[reportPrivateUsage]  # no public way
    return Gemma3ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("spelling", ["as it is saved today", "as it was published"])
def test_the_text_part_has_the_logits_of_the_whole_model(
    model: Any, spelling: str, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    is_old = any(name.startswith("language_model.") for name in tensors)
    if is_old != (spelling == "as it was published"):
        tensors = {respelled(name, is_old=is_old): tensor for name, tensor in tensors.items()}
        save_file(tensors, path, {"format": "pt"})
    token_ids = torch.tensor([2, *range(5, 30)])
    with torch.inference_mode():
        expected = model(token_ids[None]).logits[0]

    decoder = load_decoder(tmp_path, dtype=torch.float32)

    assert float((dense_logits(decoder, token_ids) - expected).abs().max()) < 1e-4
    text_values = sum(
        tensor.numel() for name, tensor in tensors.items() if "language_model" in name
    )
    assert 4 * text_values == weight_size(tmp_path).num_bytes


def respelled(name: str, *, is_old: bool) -> str:
    if is_old:
        return name.replace("language_model.model.", "model.language_model.")
    return name.replace("model.language_model.", "language_model.model.")


def test_what_the_published_file_leaves_out_is_what_transformers_knows(tmp_path: Path) -> None:
    said = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    content = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": {
            **said,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")

    found = read_model_config(tmp_path)

    known: Any = Gemma3Config(text_config=said).text_config
    assert (known.vocab_size, known.num_attention_heads, known.num_key_value_heads) == (
        found.vocab_size,
        found.num_heads,
        found.num_kv_heads,
    )
    assert (known.head_dim, known.rms_norm_eps, known.query_pre_attn_scalar**-0.5) == (
        found.head_dim,
        found.rms_norm_eps,
        found.score_scale,
    )
    assert known.max_position_embeddings == found.max_context_len
    assert (1, 106) == found.eos_token_ids
    assert [1024] * 5 + [None] == [layer.window for layer in found.layers[:6]]
    assert found.is_tied
