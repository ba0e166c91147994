from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from decoder_runs import dense_logits
from gguf_files import (
    TOKENS,
    GgufSettings,
    add_shape,
    add_tokenizer,
    finish,
    gguf_tensors,
    write_gguf,
)
from random_models import random_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from flowforge.engine.models.gguf_conversion import convert_gguf, converted_bytes
from flowforge.engine.models.weights import load_decoder
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# float32 sums in another order, and norms that were shifted by 1 and back.
TOLERANCE = 1e-4

_SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
_WIDE: dict[str, Any] = {"head_dim": 16}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
_GEMMA2: dict[str, Any] = _WIDE | {
    "sliding_window": 5,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}
_GEMMA3: dict[str, Any] = _WIDE | {"sliding_window": 5, "query_pre_attn_scalar": 16}
_PHI3_FACTORS = [[1.0, 1.5, 2.0, 4.0], [1.0, 2.0, 4.0, 8.0]]
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MODELS: dict[str, tuple[str, dict[str, Any], GgufSettings]] = {
    "llama": ("Llama", {}, GgufSettings()),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}, GgufSettings()),
    "llama, biases": ("Llama", {"attention_bias": True}, GgufSettings()),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}, GgufSettings("smollm3", pre="smaug-bpe")),
    "qwen2": ("Qwen2", {}, GgufSettings("qwen2", pre="qwen2")),
    "qwen2, yarn": (
        "Qwen2",
        {"rope_parameters": _YARN},
        GgufSettings(
            "qwen2",
            pre="qwen2",
            metadata={
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
            },
        ),
    ),
    "qwen3": ("Qwen3", _WIDE, GgufSettings("qwen3", pre="qwen2")),
    "mixtral": (
        "Mixtral",
        _EXPERTS,
        GgufSettings(metadata={"expert_count": 4, "expert_used_count": 2}),
    ),
    "qwen3moe": (
        "Qwen3Moe",
        _WIDE
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
        GgufSettings(
            "qwen3moe",
            pre="qwen2",
            metadata={
                "expert_count": 4,
                "expert_used_count": 2,
                "expert_feed_forward_length": 48,
            },
        ),
    ),
    "phi3": (
        "Phi3",
        {"sliding_window": 7},
        GgufSettings(
            "phi3",
            "llama",
            metadata={"rope.dimension_count": 8, "attention.sliding_window": 7},
        ),
    ),
    "phi3, longrope": (
        "Phi3",
        {
            "original_max_position_embeddings": 32,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": _PHI3_FACTORS[0],
                "long_factor": _PHI3_FACTORS[1],
                "original_max_position_embeddings": 32,
            },
        },
        GgufSettings(
            "phi3",
            "llama",
            metadata={
                "rope.dimension_count": 8,
                "attention.sliding_window": 0,
                "rope.scaling.original_context_length": 32,
            },
            tensors={
                "rope_factors_short.weight": np.array(_PHI3_FACTORS[0], np.float32),
                "rope_factors_long.weight": np.array(_PHI3_FACTORS[1], np.float32),
            },
        ),
    ),
    "gemma": ("Gemma", _WIDE, GgufSettings("gemma", "llama")),
    "gemma2": (
        "Gemma2",
        _GEMMA2,
        GgufSettings(
            "gemma2",
            "llama",
            metadata={
                "attention.sliding_window": 5,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 3.0,
            },
        ),
    ),
    "gemma3": (
        "Gemma3",
        _GEMMA3,
        GgufSettings("gemma3", "llama", metadata={"attention.sliding_window": 5}),
    ),
}


def _random_model(family: str, settings: dict[str, Any]) -> Any:
    return random_model(family, **(_SHAPE | settings))


def _random_llama() -> Any:
    return _random_model("Llama", {})


def _logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(token_ids[None]).logits[0]
        return logits


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, _random_llama(), GgufSettings())
    return path


@pytest.mark.parametrize("name", _MODELS)
def test_converted_model_has_the_logits_of_the_model_it_was_made_from(
    name: str, tmp_path: Path
) -> None:
    family, settings, gguf_settings = _MODELS[name]
    model = _random_model(family, settings)
    token_ids = torch.arange(20)
    expected = _logits(model, token_ids)
    write_gguf(tmp_path / "m.gguf", model, gguf_settings)

    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")

    found = dense_logits(load_decoder(tmp_path / "out", dtype=torch.float32), token_ids)
    assert (expected - found).abs().max().item() < TOLERANCE
    assert (tmp_path / "out/model.safetensors").stat().st_size > converted_bytes(
        tmp_path / "m.gguf"
    )


def test_transformers_loads_the_converted_model(gguf_path: Path, tmp_path: Path) -> None:
    expected = _logits(_random_llama(), torch.arange(8))

    convert_gguf(gguf_path, tmp_path / "out")

    converted = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert torch.equal(expected, _logits(converted, torch.arange(8)))


def test_rope_factors_of_a_file_are_llama_3_scaling(tmp_path: Path) -> None:
    model = _random_model("Llama", {"rope_parameters": _LLAMA3})
    expected = _logits(model, torch.arange(30))
    plain = 1.0 / 10000.0 ** (torch.arange(0, 8, 2) / 8)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    write_gguf(tmp_path / "m.gguf", model, GgufSettings(tensors={"rope_freqs.weight": factors}))

    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")

    found = dense_logits(load_decoder(tmp_path / "out", dtype=torch.float32), torch.arange(30))
    assert (expected - found).abs().max().item() < TOLERANCE


# --- tensor types --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["F16", "BF16"])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_half_precision_keeps_its_values_and_its_type_where_all_matrices_have_it(
    name: str, is_mixed: bool, tmp_path: Path
) -> None:
    dtype = torch.float16 if name == "F16" else torch.bfloat16
    model = _random_llama().to(dtype)
    full, half = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType[name]
    kinds = {"norm.weight": full, "ffn_up.weight": full if is_mixed else half, "weight": half}
    write_gguf(tmp_path / "half.gguf", model, GgufSettings(kinds=kinds))

    convert_gguf(tmp_path / "half.gguf", tmp_path / "out")

    tensors, expected = load_file(tmp_path / "out/model.safetensors"), model.state_dict()
    for tensor in ("mlp.down_proj", "self_attn.q_proj", "mlp.up_proj"):
        full_name = f"model.layers.1.{tensor}.weight"
        assert torch.equal(expected[full_name].float(), tensors[full_name].float())
        assert tensors[full_name].dtype == (torch.float32 if is_mixed else dtype)
    assert tensors["model.norm.weight"].dtype == torch.float32


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantised_tensors_are_read_to_within_half_a_step(name: str, tmp_path: Path) -> None:
    model = _random_llama()
    kinds = {"ffn_down.weight": gguf.GGMLQuantizationType[name]}
    write_gguf(tmp_path / "m.gguf", model, GgufSettings(kinds=kinds))

    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")

    full_name = "model.layers.1.mlp.down_proj.weight"
    exact = model.state_dict()[full_name].view(-1, 32)  # rows of one block
    found = load_file(tmp_path / "out/model.safetensors")[full_name].view(-1, 32)
    num_steps = {"Q8_0": 127, "Q4_0": 8, "Q4_1": 15}[name]
    span = exact.abs().amax(1) if name != "Q4_1" else exact.amax(1) - exact.amin(1)
    # The highest of Q4_0's 16 values is 7 steps up where the lowest is 8 down: a whole step there.
    most = (1.0 if name == "Q4_0" else 0.51) * span / num_steps + 1e-3
    assert bool(((exact - found).abs().amax(1) <= most).all())
    assert not torch.equal(exact, found)


def _half(block: bytes, start: int) -> float:
    return float(np.frombuffer(block, dtype="<f2", count=1, offset=start)[0])


def _scale_and_minimum(packed: bytes, group: int) -> tuple[int, int]:
    """One of eight pairs of 6-bit numbers in 12 bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return (
        (low & 15) | (packed[group - 4] >> 6) << 4,
        (low >> 4) | (packed[group] >> 6) << 4,
    )


def _q4_k(block: bytes, position: int) -> float:
    """d · scale · q − dmin · minimum; groups of 32, two groups share the halves of 32 bytes."""
    group, offset = divmod(position, 32)
    scale, minimum = _scale_and_minimum(block[4:16], group)
    byte = block[16 + 32 * (group // 2) + offset]
    value = byte >> 4 if group % 2 else byte & 15
    return _half(block, 0) * scale * value - _half(block, 2) * minimum


def _q5_k(block: bytes, position: int) -> float:
    """As Q4_K, with a fifth bit of each value in 32 bytes, one bit plane for each group."""
    group, offset = divmod(position, 32)
    scale, minimum = _scale_and_minimum(block[4:16], group)
    byte = block[48 + 32 * (group // 2) + offset]
    value = (byte >> 4 if group % 2 else byte & 15) | (block[16 + offset] >> group & 1) << 4
    return _half(block, 0) * scale * value - _half(block, 2) * minimum


def _q6_k(block: bytes, position: int) -> float:
    """d · scale · (q − 32); scales are signed bytes, of 16 values each."""
    half, rest = divmod(position, 128)
    quarter, offset = divmod(rest, 32)
    byte = block[64 * half + 32 * (quarter % 2) + offset]
    low = byte >> 4 if quarter >= 2 else byte & 15
    high = block[128 + 32 * half + offset] >> 2 * quarter & 3
    scale = np.frombuffer(block, dtype=np.int8, count=16, offset=192)[position // 16]
    return _half(block, 208) * int(scale) * ((low | high << 4) - 32)


@pytest.mark.parametrize(("name", "value_of"), [("Q4_K", _q4_k), ("Q5_K", _q5_k), ("Q6_K", _q6_k)])
def test_k_quants_are_read_as_the_format_says(
    name: str, value_of: Callable[[bytes, int], float], tmp_path: Path
) -> None:
    kind = gguf.GGMLQuantizationType[name]
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(5)
    blocks = generator.integers(0, 256, (32, block_bytes), dtype=np.uint8)
    scales = np.array([0.5, 0.25], dtype="<f2").view(np.uint8)
    if name == "Q6_K":
        blocks[:, 208:210] = scales[:2]
    else:
        blocks[:, :4] = scales
    model = _random_model("Llama", {"intermediate_size": 256})
    name_of_down = "blk.1.ffn_down.weight"
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    _write_with(writer, model, {name_of_down: (blocks, kind)})

    convert_gguf(tmp_path / "k.gguf", tmp_path / "out")

    found = load_file(tmp_path / "out/model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    expected = [[value_of(row.tobytes(), idx) for idx in range(256)] for row in blocks]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def _write_with(
    writer: gguf.GGUFWriter,
    model: Any,
    raw: dict[str, tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]],
) -> None:
    add_shape(writer, model.config)
    add_tokenizer(writer, GgufSettings())
    for name, values in gguf_tensors(model, "llama").items():
        if name in raw:
            blocks, kind = raw[name]
            writer.add_tensor(name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    finish(writer)


def test_quantised_experts_are_read_one_by_one(tmp_path: Path) -> None:
    model = _random_model("Mixtral", _EXPERTS)
    kind = gguf.GGMLQuantizationType.Q8_0
    settings = GgufSettings(
        metadata={"expert_count": 4, "expert_used_count": 2}, kinds={"_exps.weight": kind}
    )
    write_gguf(tmp_path / "m.gguf", model, settings)

    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")

    tensors = load_file(tmp_path / "out/model.safetensors")
    for gguf_name, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        values = gguf_tensors(model, "llama")[f"blk.1.ffn_{gguf_name}_exps.weight"]
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        for idx in range(4):
            found = tensors[f"model.layers.1.block_sparse_moe.experts.{idx}.{name}.weight"]
            torch.testing.assert_close(found, torch.tensor(expected[idx]), rtol=0, atol=0)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (GgufSettings("mamba"), "mamba"),
        (GgufSettings(tokenizer="bert"), r"tokenizer\.ggml\.model"),
        (GgufSettings(pre="tekken"), r"tokenizer\.ggml\.pre"),
        (GgufSettings("qwen2", pre="qwen2", metadata={"expert_count": 8}), "expert_count"),
        (GgufSettings(metadata={"split.count": 3}), r"split\.count"),
        (GgufSettings(metadata={"rope.scaling.type": "longrope"}), "longrope"),
        (GgufSettings(tensors={"blk.0.ssm_a": np.zeros(4, np.float32)}), "ssm_a"),
    ],
)
def test_unsupported_file_is_refused_before_anything_is_written(
    tmp_path: Path, settings: GgufSettings, named: str
) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, _random_llama(), settings)

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


def test_chat_template_and_stop_id_come_along(gguf_path: Path, tmp_path: Path) -> None:
    convert_gguf(gguf_path, tmp_path / "out")

    config = json.loads((tmp_path / "out/tokenizer_config.json").read_text(encoding="utf-8"))
    assert ("{{ messages }}", "<|end|>") == (config["chat_template"], config["eos_token"])
    assert config["add_bos_token"] is False
