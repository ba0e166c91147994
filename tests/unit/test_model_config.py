from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flowforge.engine.kv.store import RowKind
from flowforge.engine.models.config import ModelConfig, parse_model_config, read_model_config
from flowforge.engine.models.rope import inverse_frequencies
from flowforge.engine.models.rope_config import RopeConfig
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
_GEMMA2: dict[str, Any] = {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 8}
_MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def _parse(*, context_len: int | None = None, **settings: Any) -> ModelConfig:
    return parse_model_config(_LLAMA | settings, Path("config.json"), (), context_len)


def _rope(**settings: Any) -> RopeConfig:
    rope = _parse(**settings).layers[0].rope
    assert rope is not None
    return rope


def _windows(architecture: str, **settings: Any) -> list[int | None]:
    config = _parse(architectures=[architecture], num_hidden_layers=4, **settings)
    return [layer.window for layer in config.layers]


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
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "proportional"),
        ({"architectures": ["GemmaForCausalLM"], "hidden_act": "silu"}, "silu"),
        ({"use_bidirectional_attention": True}, "causal"),
        (
            {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 8, "layer_types": ["x"] * 2},
            "x",
        ),
        ({**_MIXTRAL, "intermediate_size": 100}, "multiples of 8"),
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
        ({"num_hidden_layers": 1_000_000_000}, "num_hidden_layers"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]}, "no_rope_layers"),
        ({**_MIXTRAL, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({**_MIXTRAL, "num_local_experts": None}, "num_local_experts"),
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


def test_windows_are_those_layers_that_the_family_gives_one() -> None:
    qwen: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 3}
    full, sliding = "full_attention", "sliding_attention"

    assert _windows("MistralForCausalLM", sliding_window=8) == [8, 8, 8, 8]
    assert _windows("MistralForCausalLM", sliding_window=None) == [None] * 4
    assert _windows("LlamaForCausalLM", sliding_window=8) == [None] * 4
    assert _windows("Qwen2ForCausalLM", sliding_window=8) == [None] * 4
    assert _windows("Qwen2ForCausalLM", sliding_window=8, **qwen) == [None, None, None, 8]
    assert _windows("Gemma2ForCausalLM", sliding_window=8) == [8, None, 8, None]
    assert _windows("Gemma3ForCausalLM", sliding_window=8) == [8, 8, 8, 8]
    assert _windows("Gemma3ForCausalLM", sliding_window=8, sliding_window_pattern=3) == [
        8,
        8,
        None,
        8,
    ]
    listed = [full, sliding, sliding, full]
    assert _windows("Gemma3ForCausalLM", sliding_window=8, layer_types=listed) == [None, 8, 8, None]


def test_window_does_not_bound_the_context() -> None:
    config = _parse(architectures=["MistralForCausalLM"], sliding_window=512)

    assert config.max_context_len == 2048


def test_qwen_families_bring_their_biases_and_norms() -> None:
    qwen2 = _parse(architectures=["Qwen2ForCausalLM"])
    qwen3 = _parse(architectures=["Qwen3ForCausalLM"])

    assert (True, False) == (qwen2.has_qkv_bias, qwen2.has_output_bias)
    assert (False, True) == (qwen3.has_qkv_bias, qwen3.family.has_qk_norm)


def test_gemma_is_tied_and_capped_where_its_config_says() -> None:
    caps: dict[str, Any] = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    second = _parse(architectures=["Gemma2ForCausalLM"], **caps)
    third = _parse(architectures=["Gemma3ForCausalLM"], query_pre_attn_scalar=64)

    assert (True, 50.0, 30.0) == (second.is_tied, second.score_softcap, second.logits_softcap)
    assert (1 / 16, 1 / 8) == (second.score_scale, third.score_scale)
    assert (None, None) == (third.score_softcap, third.logits_softcap)


def test_gemma_3_turns_layers_with_a_window_by_a_base_of_their_own() -> None:
    old: dict[str, Any] = {
        "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    gemma: dict[str, Any] = {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 8}
    config = _parse(**gemma, **old, sliding_window_pattern=2, rope_local_base_freq=5e3)

    local, everywhere = (layer.rope for layer in config.layers)
    assert local == RopeConfig(5e3, 16)
    assert everywhere is not None
    torch.testing.assert_close(
        inverse_frequencies(everywhere), inverse_frequencies(RopeConfig(1e6, 16)) / 8
    )


def test_layers_without_rope_are_the_last_of_each_period_or_as_listed() -> None:
    smol: dict[str, Any] = {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 4}

    by_period = [layer.rope is not None for layer in _parse(**smol).layers]
    listed = _parse(**smol, no_rope_layers=[0, 1, 1, 0]).layers

    assert by_period == [True, True, True, False]
    assert [layer.rope is not None for layer in listed] == [False, True, True, False]


def test_experts_are_in_the_layers_that_the_config_says() -> None:
    sizes: dict[str, Any] = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    }
    qwen: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4}
    config = _parse(**qwen, **sizes, decoder_sparse_step=2, mlp_only_layers=[3])

    assert [layer.has_experts for layer in config.layers] == [False, True, False, False]
    assert config.experts is not None
    assert not config.experts.is_renormalized


def test_head_dim_sets_the_kv_bytes_of_a_token() -> None:
    """ML-004: the derived 80 would be wrong."""
    config = _parse(hidden_size=2560, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    heads = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim)
    assert heads == (4096, 1024)

    kind = RowKind(3, config.num_kv_heads, config.head_dim, torch.float16)
    assert 4096 == kind.row_bytes
    assert 3 * 4096 == kind.token_bytes
    # A byte for each number, and a scale for each head of K and of V.
    assert 2048 + 2 * 8 * 4 == replace(kind, is_float8=True).row_bytes


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

    rope = _rope(rope_theta=given["theta"], rope_scaling=scaling)

    expected = torch.tensor(case["expected"]["inv_freq"])
    torch.testing.assert_close(inverse_frequencies(rope), expected, rtol=0, atol=1e-8)
    assert case["expected"]["attention_factor"] == rope.amplitude


def test_linear_and_dynamic_scaling_give_the_published_frequencies(
    cases: Callable[[str], list[dict[str, Any]]],
) -> None:
    expected = _case(cases, "ML-007")["expected"]
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}

    found = {
        "linear": _rope(rope_scaling={"type": "linear", "factor": 4.0}),
        "dynamic 4096": _rope(**dynamic, context_len=4096),
        "dynamic 2048": _rope(**dynamic, context_len=2048),
    }

    for name, rope in found.items():
        values = inverse_frequencies(rope)
        torch.testing.assert_close(values, torch.tensor(expected[name]), rtol=0, atol=1e-8)


def test_old_and_new_spellings_of_rope_scaling_mean_the_same(
    cases: Callable[[str], list[dict[str, Any]]],
) -> None:
    half = inverse_frequencies(_rope()) / 2

    for settings in _case(cases, "ML-008")["input"]["configs"]:
        torch.testing.assert_close(inverse_frequencies(_rope(**settings)), half)


_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
_LONG = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 512,
}
_NTK = {"type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    ("scaling", "exact", "most"), [(_YARN, 8192, 8192), (_LONG, 512, 2048), (_NTK, 2048, 4096)]
)
def test_context_is_as_long_as_one_set_of_frequencies_is_exact_for(
    scaling: dict[str, Any], exact: int, most: int
) -> None:
    assert _parse(rope_scaling=scaling).max_context_len == exact
    assert _parse(rope_scaling=scaling, context_len=most).max_context_len == most

    with pytest.raises(EngineError, match=str(most)) as caught:
        _parse(rope_scaling=scaling, context_len=most + 1)

    assert caught.value.code == "EN114"


def test_longrope_takes_its_long_factors_when_loaded_for_long_texts() -> None:
    short, long = _rope(rope_scaling=_LONG), _rope(rope_scaling=_LONG, context_len=513)

    torch.testing.assert_close(inverse_frequencies(short), inverse_frequencies(long) * 2)
    assert short.amplitude == long.amplitude > 1


def test_first_phi_3_spellings_mean_longrope() -> None:
    expected = _rope(rope_scaling=_LONG)

    for old in ("su", "yarn"):
        assert expected == _rope(rope_scaling=_LONG | {"type": old})


def test_yarn_amplitude_is_given_or_follows_from_the_factor() -> None:
    by_scale = {"mscale": 1.0, "mscale_all_dim": 0.5}

    assert _rope(rope_scaling=_YARN | {"attention_factor": 1.5}).amplitude == 1.5
    assert _rope(rope_scaling=_YARN).amplitude == pytest.approx(1.138629436)
    assert _rope(rope_scaling=_YARN | by_scale).amplitude == pytest.approx(
        1.138629436 / 1.069314718
    )


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
