"""What a decoder must know of a model: config.json and its neighbours, read once and checked.

The keys are those of Hugging Face configurations, old and new spellings. This module imports no
torch, so that a model can be judged without loading anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from flowforge.errors import EngineError

ModelFamily = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeKind = Literal["default", "linear", "dynamic", "llama3"]

_ARCHITECTURES: dict[str, ModelFamily] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_WINDOWED_WHEN_SAID: tuple[ModelFamily, ...] = ("qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position encoding; the last three fields are of kind "llama3" only.

    original_context_len: tokens the model saw before its context was stretched.
    """

    kind: RopeKind
    theta: float
    factor: float
    original_context_len: int
    low_freq_factor: float
    high_freq_factor: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder and the ids that end its text.

    max_context_len: tokens, prompt and output together, that the model is exact for.
    vocab_size: rows of the embedding; may exceed the ids that the tokenizer knows.
    eos_token_ids: sorted union of config.json, generation_config.json and the tokenizer.
    """

    family: ModelFamily
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_len: int
    rms_norm_eps: float
    rope: RopeConfig
    is_tied: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    eos_token_ids: tuple[int, ...]


def read_model_config(directory: Path) -> ModelConfig:
    """Read the configuration of the model in a directory.

    Raises EngineError EN110 (config.json is missing), EN111 (a value is missing or wrong) or
    EN112 (a kind of model that the engine does not run).
    """
    path = directory / "config.json"
    if not path.is_file():
        raise EngineError(
            "EN110",
            f"no config.json in {str(directory)!r}",
            help="give a Hugging Face model directory: config.json, *.safetensors, tokenizer.json",
        )
    return parse_model_config(_read_object(path), path, _eos_token_ids(directory))


def parse_model_config(
    content: dict[str, Any], path: Path, eos_token_ids: tuple[int, ...]
) -> ModelConfig:
    """Check the content of a config.json; path is for messages. Raises like read_model_config."""
    keys = _Keys(path, content)
    family = _family(keys)
    _refuse_unsupported(keys)
    num_heads = keys.positive_int("num_attention_heads")
    num_kv_heads = keys.positive_int("num_key_value_heads", num_heads)
    hidden_size = keys.positive_int("hidden_size")
    if num_heads % num_kv_heads:
        raise keys.wrong("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} heads")
    has_attention_bias = family == "qwen2" or keys.boolean("attention_bias", default=False)
    return ModelConfig(
        family=family,
        hidden_size=hidden_size,
        intermediate_size=keys.positive_int("intermediate_size"),
        num_layers=keys.positive_int("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(keys, hidden_size, num_heads),
        vocab_size=keys.positive_int("vocab_size"),
        max_context_len=_max_context_len(keys, family),
        rms_norm_eps=keys.positive_float("rms_norm_eps", 1e-6),
        rope=_rope(keys),
        is_tied=keys.boolean("tie_word_embeddings", default=False),
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias and family != "qwen2",
        has_mlp_bias=keys.boolean("mlp_bias", default=False),
        has_qk_norm=family == "qwen3",
        eos_token_ids=eos_token_ids,
    )


class _Keys:
    """Typed access to a JSON object; every error names the file, the key and what it held."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self._path = path
        self._content = content

    def get(self, key: str) -> Any:
        return self._content.get(key)

    def positive_int(self, key: str, default: int | None = None) -> int:
        value = self._content.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.wrong(key, value, "a positive integer")
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        value = self._content.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.wrong(key, value, "a positive number")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        value = self._content.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def section(self, key: str) -> _Keys | None:
        value = self._content.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return _Keys(self._path, cast("dict[str, Any]", value))

    def wrong(self, key: str, found: object, expected: str) -> EngineError:
        shown = "nothing" if found is None else repr(found)
        return EngineError(
            "EN111",
            f"{str(self._path)!r} has {shown} under {key!r}, expected {expected}",
            help="fetch the model again, or correct its config.json",
        )

    def unsupported(self, key: str, found: object, supported: str) -> EngineError:
        return EngineError(
            "EN112",
            f"{str(self._path)!r} has {key} {found!r}, supported: {supported}",
            help="choose another model; `flowforge models list` shows those at hand",
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise EngineError(
            "EN111", f"cannot read {str(path)!r} as JSON: {error}", help="fetch the model again"
        ) from error
    if not isinstance(content, dict):
        raise EngineError(
            "EN111",
            f"{str(path)!r} holds {type(content).__name__}, expected an object",
            help="fetch the model again",
        )
    return cast("dict[str, Any]", content)


def _family(keys: _Keys) -> ModelFamily:
    supported = ", ".join(sorted(_ARCHITECTURES))
    architectures = keys.get("architectures")
    if architectures:
        name = architectures[0] if isinstance(architectures, list) else architectures
        if name not in _ARCHITECTURES:
            raise keys.unsupported("architecture", name, supported)
        return _ARCHITECTURES[name]
    model_type = keys.get("model_type")
    if model_type not in get_args(ModelFamily):
        raise keys.unsupported("model_type", model_type, ", ".join(get_args(ModelFamily)))
    return cast("ModelFamily", model_type)


def _refuse_unsupported(keys: _Keys) -> None:
    quantization = keys.section("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method")
        raise keys.unsupported("quantization_config", method, "unquantised safetensors")
    activation = keys.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise keys.unsupported("hidden_act", activation, "'silu'")


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    if keys.get("head_dim") is None and hidden_size % num_heads:
        raise keys.wrong("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
    head_dim = keys.positive_int("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise keys.wrong("head_dim", head_dim, "an even number, as rotary encoding pairs rows")
    return head_dim


def _max_context_len(keys: _Keys, family: ModelFamily) -> int:
    """Inside its window a sliding-window model is a plain one, so the window bounds the context."""
    context_len = keys.positive_int("max_position_embeddings")
    window = keys.get("sliding_window")
    if window is None or (family in _WINDOWED_WHEN_SAID and not keys.get("use_sliding_window")):
        return context_len
    return min(context_len, keys.positive_int("sliding_window"))


def _rope(keys: _Keys) -> RopeConfig:
    # transformers 5 writes `rope_parameters`; before, `rope_scaling` beside `rope_theta`.
    scaling = keys.section("rope_parameters") or keys.section("rope_scaling") or _Keys(Path(), {})
    rotary_share = scaling.get("partial_rotary_factor") or keys.get("partial_rotary_factor") or 1.0
    if rotary_share != 1.0:
        raise keys.unsupported("partial_rotary_factor", rotary_share, "1.0")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise keys.unsupported("rope scaling", kind, ", ".join(get_args(RopeKind)))
    theta = scaling if scaling.get("rope_theta") is not None else keys
    is_llama3 = kind == "llama3"
    context_len = keys.positive_int("max_position_embeddings")
    return RopeConfig(
        kind=cast("RopeKind", kind),
        theta=theta.positive_float("rope_theta", 10000.0),
        factor=1.0 if kind == "default" else scaling.positive_float("factor"),
        original_context_len=scaling.positive_int("original_max_position_embeddings", context_len),
        low_freq_factor=scaling.positive_float("low_freq_factor") if is_llama3 else 1.0,
        high_freq_factor=scaling.positive_float("high_freq_factor") if is_llama3 else 1.0,
    )


# --- ids that end a text -------------------------------------------------------------------------


def _eos_token_ids(directory: Path) -> tuple[int, ...]:
    """The union of what the three files say: each of them alone is wrong for some models."""
    token_ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        if path.is_file():
            token_ids |= _listed_eos(path, _read_object(path).get("eos_token_id"))
    token_ids |= _tokenizer_eos(directory)
    return tuple(sorted(token_ids))


def _listed_eos(path: Path, value: object) -> set[int]:
    if value is None:
        return set()
    listed = cast("list[object]", value if isinstance(value, list) else [value])
    if not all(isinstance(token_id, int) for token_id in listed):
        raise _Keys(path, {}).wrong("eos_token_id", value, "an integer or a list of integers")
    return set(cast("list[int]", listed))


def _tokenizer_eos(directory: Path) -> set[int]:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return set()
    content = _read_object(path)
    token = content.get("eos_token")
    if isinstance(token, dict):
        token = cast("dict[str, Any]", token).get("content")
    if not isinstance(token, str):
        return set()
    added = cast("dict[str, dict[str, Any]]", content.get("added_tokens_decoder") or {})
    for token_id, entry in added.items():
        if entry.get("content") == token:
            return {int(token_id)}
    return _tokenizer_id(directory / "tokenizer.json", token)


def _tokenizer_id(path: Path, token: str) -> set[int]:
    """Look a token up in tokenizer.json; some megabytes to parse, so the last resort."""
    if not path.is_file():
        return set()
    content = _read_object(path)
    added = cast("list[dict[str, Any]]", content.get("added_tokens") or [])
    found = {int(entry["id"]) for entry in added if entry.get("content") == token}
    if found:
        return found
    vocab = cast("dict[str, Any]", content.get("model") or {}).get("vocab")
    return {int(vocab[token])} if isinstance(vocab, dict) and token in vocab else set()
