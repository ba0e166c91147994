from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from flowforge.engine.models.gguf_conversion import convert_gguf
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

_NUM_HEADS, _NUM_KV_HEADS = 4, 2
_TOKENS = ["<|end|>", "a", "b", "ab", "c"]


def _random_llama() -> Any:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(_TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=_NUM_HEADS,
        num_key_value_heads=_NUM_KV_HEADS,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def _write_gguf(path: Path, model: Any, **overrides: str) -> None:
    """Write a model as llama.cpp's converter does: Q and K rows in pairs, quantised MLP."""
    writer = gguf.GGUFWriter(path, overrides.get("architecture", "llama"))
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(_NUM_HEADS)
    writer.add_head_count_kv(_NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model(overrides.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(overrides.get("pre", "smollm"))
    writer.add_token_list(_TOKENS)
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, values in _gguf_tensors(model).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_tensors(model: Any) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    layer_names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    for layer_idx in range(2):
        for hf_name, name in layer_names.items():
            values = weights[f"model.layers.{layer_idx}.{hf_name}.weight"]
            num_heads = {"attn_q": _NUM_HEADS, "attn_k": _NUM_KV_HEADS}.get(name)
            if num_heads is not None:
                halves = values.reshape(num_heads, 2, -1, values.shape[-1])
                values = halves.swapaxes(1, 2).reshape(values.shape).copy()
            tensors[f"blk.{layer_idx}.{name}.weight"] = values
    return tensors


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    _write_gguf(path, _random_llama())
    return path


def test_converted_model_has_the_logits_of_the_model_it_was_made_from(
    gguf_path: Path, tmp_path: Path
) -> None:
    token_ids = torch.tensor([[0, 1, 2, 3, 4, 3, 2, 1]])
    with torch.inference_mode():
        expected = _random_llama()(token_ids).logits

    convert_gguf(gguf_path, tmp_path / "out")

    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.inference_mode():
        assert torch.equal(expected, converted(token_ids).logits)


def test_half_precision_tensors_are_widened_exactly(tmp_path: Path) -> None:
    model = _random_llama().to(torch.float16)
    _write_gguf(tmp_path / "half.gguf", model)

    convert_gguf(tmp_path / "half.gguf", tmp_path / "out")

    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    found = converted.state_dict()["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(model.state_dict()["model.layers.1.mlp.down_proj.weight"].float(), found)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"architecture": "gemma"}, "gemma"),
        ({"tokenizer": "llama"}, r"tokenizer\.ggml\.model"),
        ({"pre": "qwen2"}, r"tokenizer\.ggml\.pre"),
    ],
)
def test_unsupported_file_is_refused_before_anything_is_written(
    tmp_path: Path, overrides: dict[str, str], named: str
) -> None:
    path = tmp_path / "other.gguf"
    _write_gguf(path, _random_llama(), **overrides)

    with pytest.raises(EngineError, match=named) as caught:
        convert_gguf(path, tmp_path / "out")

    assert caught.value.code == "EN132"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
def test_truncated_file_is_an_error_naming_it(
    gguf_path: Path, tmp_path: Path, share: float
) -> None:
    content = gguf_path.read_bytes()
    gguf_path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(EngineError, match=r"tiny\.gguf") as caught:
        convert_gguf(gguf_path, tmp_path / "out")

    assert caught.value.code == "EN131"
    assert not (tmp_path / "out").exists()


def test_file_of_another_kind_is_an_error_naming_it(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>", encoding="utf-8")

    with pytest.raises(EngineError, match="GGUF") as caught:
        convert_gguf(path, tmp_path / "out")

    assert caught.value.code == "EN131"
