from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flowforge.engine.models.config import (
    ModelConfig,
    RopeConfig,
    parse_model_config,
    read_model_config,
)
from flowforge.engine.models.rope import inverse_frequencies
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


def _parse(**settings: Any) -> ModelConfig:
    return parse_model_config(_LLAMA | settings, Path("config.json"), ())


def _frequencies(rope: RopeConfig, context_len: int = 1) -> torch.Tensor:
    return inverse_frequencies(rope, 16, context_len)


def test_head_dim_and_kv_heads_follow_from_the_heads_when_not_given() -> None:
    config = _parse()

    assert (16, 4) == (config.head_dim, config.num_kv_heads)


def test_explicit_head_dim_wins_over_the_derived_one() -> None:
    assert _parse(head_dim=128).head_dim == 128


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "mamba"}, "mamba"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
    ],
)
def test_unsupported_model_is_refused_by_key_value_and_what_is_supported(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(EngineError, match=named) as caught:
        _parse(**settings)

    assert caught.value.code == "EN112"
    assert "supported" in caught.value.message


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 63}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
    ],
)
def test_wrong_value_is_named_by_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(EngineError, match=f"'{key}'") as caught:
        _parse(**settings)

    assert caught.value.code == "EN111"


def test_missing_config_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=str(tmp_path)) as caught:
        read_model_config(tmp_path)

    assert caught.value.code == "EN110"


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_config_that_is_no_json_object_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))

    with pytest.raises(EngineError, match=r"config\.json") as caught:
        read_model_config(tmp_path)

    assert caught.value.code == "EN111"


def test_sliding_window_bounds_the_context_it_is_exact_for() -> None:
    mistral = ["MistralForCausalLM"]
    qwen = ["Qwen2ForCausalLM"]

    assert _parse(architectures=mistral, sliding_window=512).max_context_len == 512
    assert _parse(architectures=mistral, sliding_window=None).max_context_len == 2048
    assert _parse(architectures=qwen, sliding_window=512).max_context_len == 2048


def test_qwen_families_bring_their_biases_and_norms() -> None:
    qwen2 = _parse(architectures=["Qwen2ForCausalLM"])
    qwen3 = _parse(architectures=["Qwen3ForCausalLM"])

    assert (True, False, False) == (qwen2.has_qkv_bias, qwen2.has_output_bias, qwen2.has_qk_norm)
    assert (False, True) == (qwen3.has_qkv_bias, qwen3.has_qk_norm)


# --- rope: ML-005, ML-007, ML-008 ----------------------------------------------------------------


def _case(cases: Callable[[str], list[dict[str, Any]]], case_id: str) -> dict[str, Any]:
    return next(case for case in cases("model_loading") if case["id"] == case_id)


def test_llama3_scaling_gives_the_published_frequencies(
    cases: Callable[[str], list[dict[str, Any]]],
) -> None:
    case = _case(cases, "ML-005")
    given = case["input"]
    scaling = {key: given[key] for key in ("rope_type", "factor", "low_freq_factor")}
    scaling["high_freq_factor"] = given["high_freq_factor"]
    scaling["original_max_position_embeddings"] = given["original_max_position_embeddings"]

    rope = _parse(rope_theta=given["theta"], rope_scaling=scaling).rope

    expected = torch.tensor(case["expected"]["inv_freq"])
    torch.testing.assert_close(_frequencies(rope), expected, rtol=0, atol=1e-8)


def test_linear_and_dynamic_scaling_give_the_published_frequencies(
    cases: Callable[[str], list[dict[str, Any]]],
) -> None:
    expected = _case(cases, "ML-007")["expected"]
    linear = _parse(rope_scaling={"type": "linear", "factor": 4.0}).rope
    dynamic = _parse(rope_scaling={"type": "dynamic", "factor": 2.0}).rope

    found = {
        "linear": _frequencies(linear),
        "dynamic 4096": _frequencies(dynamic, 4096),
        "dynamic 2048": _frequencies(dynamic, 2048),
    }

    for name, values in found.items():
        torch.testing.assert_close(values, torch.tensor(expected[name]), rtol=0, atol=1e-8)


def test_old_and_new_spellings_of_rope_scaling_mean_the_same(
    cases: Callable[[str], list[dict[str, Any]]],
) -> None:
    half = _frequencies(_parse().rope) / 2

    for settings in _case(cases, "ML-008")["input"]["configs"]:
        torch.testing.assert_close(_frequencies(_parse(**settings).rope), half)


# --- ids that end a text: ML-012, TK-048 ---------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, (2,)),
        ({"eos_token_id": 2}, (2,)),
        ({"eos_token_id": [2, 0]}, (0, 2)),
        ({"eos_token_id": None}, (2,)),
    ],
)
def test_stop_set_is_what_any_file_says(
    tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    _write(tmp_path / "config.json", _LLAMA | {"eos_token_id": 2})
    if generation is not None:
        _write(tmp_path / "generation_config.json", generation)

    assert read_model_config(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize("place", ["added_tokens_decoder", "tokenizer.json", "vocabulary"])
def test_tokenizer_eos_joins_the_stop_set(tmp_path: Path, place: str) -> None:
    _write(tmp_path / "config.json", _LLAMA)
    _write(tmp_path / "generation_config.json", {"eos_token_id": 0})
    tokenizer: dict[str, Any] = {"eos_token": {"content": "<|im_end|>"}}
    if place == "added_tokens_decoder":
        tokenizer["added_tokens_decoder"] = {"2": {"content": "<|im_end|>"}}
    elif place == "tokenizer.json":
        added = [{"id": 2, "content": "<|im_end|>"}]
        _write(tmp_path / "tokenizer.json", {"added_tokens": added})
    else:
        _write(tmp_path / "tokenizer.json", {"model": {"vocab": {"<|im_end|>": 2}}})
    _write(tmp_path / "tokenizer_config.json", tokenizer)

    assert read_model_config(tmp_path).eos_token_ids == (0, 2)


def test_eos_of_a_wrong_type_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path / "config.json", _LLAMA | {"eos_token_id": "</s>"})

    with pytest.raises(EngineError, match="eos_token_id"):
        read_model_config(tmp_path)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
