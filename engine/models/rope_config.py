"""How a model turns its heads by position: read from config.json, judged without torch.

K rows are turned before they are cached and are then shared, so one model has one set of
frequencies. Scalings that depend on the length of the text (dynamic, longrope) are settled here, by
the context length that the model is loaded for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.models.config_keys import ConfigKeys

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """Theta grows with the context: stretch is context length over original context length."""

    factor: float
    stretch: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Waves that turn less than low_freq_factor times in the original context are stretched."""

    factor: float
    original_context_len: int
    low_freq_factor: float
    high_freq_factor: float


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Waves that turn more than beta_fast times are kept, less than beta_slow times stretched.

    is_truncated: the borders between them are whole pairs of rows.
    """

    factor: float
    original_context_len: int
    beta_fast: float
    beta_slow: float
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each pair of rows has a factor of its own (longrope; rope factors of a GGUF file)."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | FactorScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position encoding of a layer.

    num_rows: rows of a head that turn; the rest have no position. amplitude: what cosines and
    sines are multiplied by.
    """

    theta: float
    num_rows: int
    scaling: RopeScaling | None = None
    amplitude: float = 1.0


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """exact: tokens that all frequencies are the model's own for. most: with stretched ones."""

    exact: int
    most: int


def rope_section(keys: ConfigKeys) -> ConfigKeys:
    """The keys that describe the rotation: transformers 5 has a section, before it were two places.

    Raises EngineError EN111.
    """
    return keys.section("rope_parameters") or keys.section("rope_scaling") or keys.empty()


def context_limits(keys: ConfigKeys, scaling: ConfigKeys) -> ContextLimits:
    """How long a text may be, by scaling. Raises EngineError EN111 or EN112."""
    trained = keys.positive_int("max_position_embeddings")
    match _kind(keys, scaling):
        case "dynamic":
            return ContextLimits(trained, int(trained * scaling.positive_float("factor")))
        case "longrope":
            return ContextLimits(min(trained, _original_len(keys, scaling)), trained)
        case "yarn":
            stretched = _original_len(keys, scaling) * _yarn_factor(keys, scaling)
            most = max(trained, int(stretched))
            return ContextLimits(most, most)
        case _:
            return ContextLimits(trained, trained)


def parse_rope(
    keys: ConfigKeys,
    scaling: ConfigKeys,
    head_dim: int,
    context_len: int,
    default_theta: float = 10000.0,
) -> RopeConfig:
    """Check the rotation that `scaling` describes, for texts of up to context_len tokens.

    Raises EngineError EN111 (a value is missing or wrong) or EN112 (not supported).
    """
    theta_keys = scaling if scaling.get("rope_theta") is not None else keys
    theta = theta_keys.positive_float("rope_theta", default_theta)
    num_rows = _num_rows(keys, scaling, head_dim)
    amplitude = 1.0
    parsed: RopeScaling | None = None
    match _kind(keys, scaling):
        case "linear":
            parsed = LinearScaling(scaling.positive_float("factor"))
        case "dynamic":
            stretch = context_len / keys.positive_int("max_position_embeddings")
            parsed = DynamicScaling(scaling.positive_float("factor"), max(1.0, stretch))
        case "llama3":
            parsed = Llama3Scaling(
                scaling.positive_float("factor"),
                _original_len(keys, scaling),
                scaling.positive_float("low_freq_factor"),
                scaling.positive_float("high_freq_factor"),
            )
        case "yarn":
            parsed = YarnScaling(
                _yarn_factor(keys, scaling),
                _original_len(keys, scaling),
                scaling.positive_float("beta_fast", 32.0),
                scaling.positive_float("beta_slow", 1.0),
                is_truncated=scaling.boolean("truncate", default=True),
            )
            amplitude = _yarn_amplitude(scaling, parsed.factor)
        case "longrope":
            original = _original_len(keys, scaling)
            length = "long_factor" if context_len > original else "short_factor"
            parsed = FactorScaling(scaling.positive_floats(length, num_rows // 2))
            amplitude = _longrope_amplitude(keys, scaling, original)
        case _:
            pass
    return RopeConfig(theta, num_rows, parsed, amplitude)


def _kind(keys: ConfigKeys, scaling: ConfigKeys) -> str:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in _KINDS:
        raise keys.unsupported("rope scaling", kind, ", ".join(_KINDS))
    if kind == "su" or (kind == "yarn" and scaling.get("short_factor") is not None):
        return "longrope"  # what the first Phi-3 models called it
    return str(kind)


def _num_rows(keys: ConfigKeys, scaling: ConfigKeys, head_dim: int) -> int:
    share_keys = scaling if scaling.get("partial_rotary_factor") is not None else keys
    num_rows = int(head_dim * share_keys.positive_float("partial_rotary_factor", 1.0))
    if num_rows % 2 or not 0 < num_rows <= head_dim:
        found = share_keys.get("partial_rotary_factor")
        raise keys.wrong("partial_rotary_factor", found, f"an even part of {head_dim} rows")
    return num_rows


def _original_len(keys: ConfigKeys, scaling: ConfigKeys) -> int:
    """Tokens the model saw before its context was stretched; the outer key wins, as Phi-3 has it.

    Without either the context was not stretched.
    """
    name = "original_max_position_embeddings"
    trained = keys.positive_int("max_position_embeddings")
    return keys.positive_int(name, scaling.positive_int(name, trained))


def _yarn_factor(keys: ConfigKeys, scaling: ConfigKeys) -> float:
    stretch = keys.positive_int("max_position_embeddings") / _original_len(keys, scaling)
    return scaling.positive_float("factor", stretch)


def _yarn_amplitude(scaling: ConfigKeys, factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return scaling.positive_float("attention_factor")

    def amplitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        above = amplitude(scaling.positive_float("mscale"))
        return above / amplitude(scaling.positive_float("mscale_all_dim"))
    return amplitude(1.0)


def _longrope_amplitude(keys: ConfigKeys, scaling: ConfigKeys, original: int) -> float:
    if scaling.get("attention_factor") is not None:
        return scaling.positive_float("attention_factor")
    stretch = keys.positive_int("max_position_embeddings") / original
    factor = scaling.positive_float("factor", stretch)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
