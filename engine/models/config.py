"""What a decoder must know of a model: config.json and its neighbours, read once and checked.

The keys are those of Hugging Face configurations, old and new spellings. This module imports no
torch, so that a model can be judged without loading anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flowforge.engine.models.config_keys import ConfigKeys, read_json_object
from flowforge.engine.models.families import ARCHITECTURES, FAMILIES, Family
from flowforge.engine.models.rope_config import (
    RopeConfig,
    context_limits,
    parse_rope,
    rope_section,
)
from flowforge.engine.models.stop_ids import read_eos_token_ids
from flowforge.engine.models.text_part import text_section
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

Activation = Literal["silu", "gelu_tanh"]

_MOST_LAYERS = 10_000  # each is looked for by name: a damaged number must not take hours
_GEMMA3_LOCAL_THETA = 10000.0
_GEMMA_SCORE_SCALAR = 256
_FIRST_WINDOWED_LAYER = 28  # of Qwen models that use windows and do not say from where
# Grouped matrix products read rows of whole 16-byte words, which are 8 values of bfloat16.
_EXPERT_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer.

    rope: None in a layer without position encoding. window: tokens that a query sees, itself
    included; None for all. has_experts: the MLP is a mixture of experts.
    """

    rope: RopeConfig | None
    window: int | None
    has_experts: bool


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The mixture of experts of a model.

    num_chosen: experts that compute each token. is_renormalized: the weights of the chosen ones
    add up to 1.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    is_renormalized: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder and the ids that end its text.

    layers: one entry each, num_layers of them.
    max_context_len: tokens, prompt and output together, that the model is exact for.
    vocab_size: rows of the embedding; may exceed the ids that the tokenizer knows.
    score_scale: multiplies Q·K. score_softcap, logits_softcap: c for which values x become
    c · tanh(x / c), before the attention mask and on the logits; None where they stay as they are.
    eos_token_ids: sorted union of config.json, generation_config.json and the tokenizer.
    """

    family: Family
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerConfig, ...]
    experts: ExpertsConfig | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_len: int
    rms_norm_eps: float
    activation: Activation
    score_scale: float
    score_softcap: float | None
    logits_softcap: float | None
    is_tied: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    eos_token_ids: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        """Layers of the decoder; each has K and V rows of its own."""
        return len(self.layers)


def read_model_config(directory: Path, context_len: int | None = None) -> ModelConfig:
    """Read the configuration of the model in a directory.

    context_len: tokens that the model is to be loaded for; None for as many as it knows without
    stretching. More than that turns on the long form of its rope scaling, for texts of any length.
    Raises EngineError EN110 (config.json is missing), EN111 (a value is missing or wrong), EN112
    (a kind of model that the engine does not run) or EN114 (context_len is more than it can do).
    """
    path = directory / "config.json"
    if not path.is_file():
        raise EngineError(
            "EN110",
            f"no config.json in {str(directory)!r}",
            help="give a Hugging Face model directory: config.json, *.safetensors, tokenizer.json",
        )
    content = text_section(read_json_object(path))
    return parse_model_config(content, path, read_eos_token_ids(directory), context_len)


def parse_model_config(
    content: dict[str, Any],
    path: Path,
    eos_token_ids: tuple[int, ...],
    context_len: int | None = None,
) -> ModelConfig:
    """Check the content of a config.json; path is for messages. Raises like read_model_config."""
    keys = ConfigKeys(path, content)
    family = _family(keys)
    _refuse_unsupported(keys)
    num_heads = keys.positive_int("num_attention_heads")
    num_kv_heads = keys.positive_int("num_key_value_heads", num_heads)
    hidden_size = keys.positive_int("hidden_size")
    if num_heads % num_kv_heads:
        raise keys.wrong("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} heads")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    max_context_len = _max_context_len(keys, context_len)
    experts = _experts(keys, family)
    has_attention_bias = family.has_qkv_bias or keys.boolean("attention_bias", default=False)
    caps_scores = family.name == "gemma2"
    return ModelConfig(
        family=family,
        hidden_size=hidden_size,
        intermediate_size=keys.positive_int("intermediate_size"),
        layers=_layers(keys, family, head_dim, max_context_len, has_experts=experts is not None),
        experts=experts,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=keys.positive_int("vocab_size"),
        max_context_len=max_context_len,
        rms_norm_eps=keys.positive_float("rms_norm_eps", 1e-6),
        activation=_activation(keys, family),
        score_scale=_score_scalar(keys, family, head_dim) ** -0.5,
        score_softcap=_softcap(keys, "attn_logit_softcapping") if caps_scores else None,
        logits_softcap=_softcap(keys, "final_logit_softcapping") if family.has_post_norms else None,
        is_tied=keys.boolean("tie_word_embeddings", default=family.is_tied),
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias and not family.has_qkv_bias,
        has_mlp_bias=keys.boolean("mlp_bias", default=False),
        eos_token_ids=eos_token_ids,
    )


def _family(keys: ConfigKeys) -> Family:
    architectures = keys.get("architectures")
    if architectures:
        name = architectures[0] if isinstance(architectures, list) else architectures
        if name not in ARCHITECTURES:
            raise keys.unsupported("architecture", name, ", ".join(sorted(ARCHITECTURES)))
        return ARCHITECTURES[name]
    model_type = keys.get("model_type")
    if model_type not in FAMILIES:
        raise keys.unsupported("model_type", model_type, ", ".join(FAMILIES))
    return FAMILIES[model_type]


def _refuse_unsupported(keys: ConfigKeys) -> None:
    quantization = keys.section("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method")
        raise keys.unsupported("quantization_config", method, "unquantised safetensors")
    if keys.get("use_bidirectional_attention"):
        raise keys.unsupported("use_bidirectional_attention", True, "causal attention")


def _activation(keys: ConfigKeys, family: Family) -> Activation:
    given = keys.get("hidden_activation") or keys.get("hidden_act")
    if family.has_gemma_numerics:
        # "gelu" stands in the first Gemma files, which were trained with the tanh form.
        if given not in (None, "gelu", "gelu_pytorch_tanh"):
            raise keys.unsupported("hidden_activation", given, "'gelu_pytorch_tanh'")
        return "gelu_tanh"
    if given not in (None, "silu", "swish"):
        raise keys.unsupported("hidden_act", given, "'silu'")
    return "silu"


def _head_dim(keys: ConfigKeys, hidden_size: int, num_heads: int) -> int:
    if keys.get("head_dim") is None and hidden_size % num_heads:
        raise keys.wrong("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
    head_dim = keys.positive_int("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise keys.wrong("head_dim", head_dim, "an even number, as rotary encoding pairs rows")
    return head_dim


def _score_scalar(keys: ConfigKeys, family: Family, head_dim: int) -> float:
    if not family.has_post_norms:
        return head_dim
    return keys.positive_float("query_pre_attn_scalar", _GEMMA_SCORE_SCALAR)


def _softcap(keys: ConfigKeys, key: str) -> float | None:
    return None if keys.get(key) is None else keys.positive_float(key)


def _experts(keys: ConfigKeys, family: Family) -> ExpertsConfig | None:
    if not family.has_experts:
        return None
    count_key = "num_experts" if keys.get("num_experts") is not None else "num_local_experts"
    num_experts = keys.positive_int(count_key)
    num_chosen = keys.positive_int("num_experts_per_tok")
    if num_chosen > num_experts:
        raise keys.wrong("num_experts_per_tok", num_chosen, f"at most {num_experts} experts")
    is_mixtral = family.name == "mixtral"
    size_key = "intermediate_size" if is_mixtral else "moe_intermediate_size"
    for key in ("hidden_size", size_key):
        if keys.positive_int(key) % _EXPERT_ALIGNMENT:
            raise keys.unsupported(key, keys.get(key), f"multiples of {_EXPERT_ALIGNMENT}")
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=keys.positive_int(size_key),
        is_renormalized=is_mixtral or keys.boolean("norm_topk_prob", default=False),
    )


def _max_context_len(keys: ConfigKeys, wanted: int | None) -> int:
    limits = context_limits(keys, _global_rope_section(keys))
    if wanted is None:
        return limits.exact
    if wanted > limits.most:
        raise EngineError(
            "EN114",
            f"a context of {wanted} tokens was asked for, and the model's is {limits.most}",
            help=f"ask for at most {limits.most}, or choose a model with a longer context",
        )
    return wanted


# --- layers --------------------------------------------------------------------------------------


def _layers(
    keys: ConfigKeys, family: Family, head_dim: int, max_context_len: int, *, has_experts: bool
) -> tuple[LayerConfig, ...]:
    num_layers = keys.positive_int("num_hidden_layers")
    if num_layers > _MOST_LAYERS:
        raise keys.wrong("num_hidden_layers", num_layers, f"at most {_MOST_LAYERS:,}")
    turns = _turning_layers(keys, family, num_layers)
    windows = _windows(keys, family, turns)
    scaling = _global_rope_section(keys)
    everywhere = parse_rope(keys, scaling, head_dim, max_context_len, family.default_theta)
    in_windows = _local_rope(keys, head_dim) if family.name == "gemma3_text" else everywhere
    sparse = _sparse_layers(keys, num_layers) if has_experts else [False] * num_layers
    return tuple(
        LayerConfig(
            rope=(everywhere if window is None else in_windows) if is_turning else None,
            window=window,
            has_experts=is_sparse,
        )
        for is_turning, window, is_sparse in zip(turns, windows, sparse, strict=True)
    )


def _turning_layers(keys: ConfigKeys, family: Family, num_layers: int) -> list[bool]:
    if family.nope_period is None:
        return [True] * num_layers
    listed = keys.of_layers("no_rope_layers", num_layers)  # where 1 means that there is rope
    if listed is not None:
        return [bool(entry) for entry in listed]
    period = keys.positive_int("no_rope_layer_interval", family.nope_period)
    return [(idx + 1) % period != 0 for idx in range(num_layers)]


def _windows(keys: ConfigKeys, family: Family, turns: list[bool]) -> list[int | None]:
    num_layers = len(turns)
    if keys.get("sliding_window") is None or family.window_rule == "none":
        return [None] * num_layers
    when_said = family.window_rule in ("all if said", "upper", "without rope")
    if when_said and not keys.boolean("use_sliding_window", default=False):
        return [None] * num_layers
    window = keys.positive_int("sliding_window")
    listed = None
    if family.window_rule not in ("all", "all if said"):
        listed = keys.of_layers("layer_types", num_layers)
    if listed is None:
        return [window if has else None for has in _default_windows(keys, family, turns)]
    for kind in listed:
        if kind not in ("sliding_attention", "full_attention"):
            raise keys.unsupported("layer_types", kind, "'sliding_attention', 'full_attention'")
    return [window if kind == "sliding_attention" else None for kind in listed]


def _default_windows(keys: ConfigKeys, family: Family, turns: list[bool]) -> list[bool]:
    match family.window_rule:
        case "upper":
            first = keys.get("max_window_layers")
            first = _FIRST_WINDOWED_LAYER if first is None else first
            if not isinstance(first, int):
                raise keys.wrong("max_window_layers", first, "the index of a layer")
            return [idx >= first for idx in range(len(turns))]
        case "without rope":
            return [not is_turning for is_turning in turns]
        case "alternating":
            key = "sliding_window_pattern"
            key = key if keys.get(key) is not None else f"_{key}"
            period = keys.positive_int(key, family.window_period)
            return [(idx + 1) % period != 0 for idx in range(len(turns))]
        case _:
            return [True] * len(turns)


def _sparse_layers(keys: ConfigKeys, num_layers: int) -> list[bool]:
    dense = keys.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise keys.wrong("mlp_only_layers", dense, "a list of layer indices")
    step = keys.positive_int("decoder_sparse_step", 1)
    return [idx not in dense and (idx + 1) % step == 0 for idx in range(num_layers)]


def _global_rope_section(keys: ConfigKeys) -> ConfigKeys:
    section = rope_section(keys)
    return section.section("full_attention") or section


def _local_rope(keys: ConfigKeys, head_dim: int) -> RopeConfig:
    """Gemma 3's layers with a window turn by a base of their own and are never stretched."""
    local = rope_section(keys).section("sliding_attention")
    if local is not None:
        context_len = keys.positive_int("max_position_embeddings")
        return parse_rope(keys, local, head_dim, context_len, _GEMMA3_LOCAL_THETA)
    return RopeConfig(keys.positive_float("rope_local_base_freq", _GEMMA3_LOCAL_THETA), head_dim)
