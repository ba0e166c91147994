"""The config.json that a GGUF file stands for.

Sources: the key names of llama.cpp's GGUF specification, and what its converter (MIT) leaves out
because llama.cpp knows it: Gemma's score scales, SmolLM3's layers without position encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.models.families import FAMILIES, Family

if TYPE_CHECKING:
    from flowforge.engine.models.gguf_file import GgufFile

_ROPE_FACTORS = "rope_freqs.weight"
_SHORT_FACTORS, _LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
# Tensors that become part of the configuration.
ROPE_TENSORS = frozenset((_ROPE_FACTORS, _SHORT_FACTORS, _LONG_FACTORS))


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """How the files of one `general.architecture` differ from Hugging Face's.

    has_paired_rows: Q and K rows that turn together are neighbours. has_shifted_norms: norm
    weights are stored as 1 + w.
    """

    family: Family
    has_paired_rows: bool = False
    has_shifted_norms: bool = False


_ARCHITECTURES = {
    "llama": GgufArchitecture(FAMILIES["llama"], has_paired_rows=True),
    "smollm3": GgufArchitecture(FAMILIES["smollm3"], has_paired_rows=True),
    "qwen2": GgufArchitecture(FAMILIES["qwen2"]),
    "qwen3": GgufArchitecture(FAMILIES["qwen3"]),
    "qwen3moe": GgufArchitecture(FAMILIES["qwen3_moe"]),
    "phi3": GgufArchitecture(FAMILIES["phi3"]),
    "gemma": GgufArchitecture(FAMILIES["gemma"], has_shifted_norms=True),
    "gemma2": GgufArchitecture(FAMILIES["gemma2"], has_shifted_norms=True),
    "gemma3": GgufArchitecture(FAMILIES["gemma3_text"], has_shifted_norms=True),
}
# Mixtral's files say that they are of a Llama, with experts.
_MIXTRAL = GgufArchitecture(FAMILIES["mixtral"], has_paired_rows=True)
# The largest Gemmas scale scores by hidden_size per head and not by head_dim: layers they have.
_LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}


def gguf_architecture(file: GgufFile) -> GgufArchitecture:
    """The architecture of a file. Raises EngineError EN131 or EN132."""
    name = file.require("general.architecture")
    if name not in _ARCHITECTURES:
        raise file.unsupported("general.architecture", name, ", ".join(sorted(_ARCHITECTURES)))
    if (num_files := file.find("split.count") or 1) > 1:
        raise file.unsupported("split.count", num_files, "whole files (`gguf-split --merge`)")
    architecture = _ARCHITECTURES[name]
    num_experts = file.find(f"{name}.expert_count")
    if not num_experts or architecture.family.has_experts:
        return architecture
    if name != "llama":
        raise file.unsupported(f"{name}.expert_count", num_experts, "no experts in this kind")
    return _MIXTRAL


def gguf_model_config(file: GgufFile) -> dict[str, object]:
    """The content of config.json. Raises EngineError EN131 or EN132."""
    family = gguf_architecture(file).family
    name = file.require("general.architecture")
    if "token_embd.weight" not in file.tensors:
        raise file.unsupported("no tensor", "token_embd.weight", "files with an embedding")
    num_heads = int(file.require(f"{name}.attention.head_count"))
    hidden_size = int(file.require(f"{name}.embedding_length"))
    head_dim = _head_dim(file, name, hidden_size // num_heads)
    epsilon = file.require(f"{name}.attention.layer_norm_rms_epsilon")
    bos, eos, pad = (
        file.find(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding")
    )
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "head_dim": head_dim,
        "hidden_act": "gelu_pytorch_tanh" if family.has_gemma_numerics else "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(file.require(f"{name}.feed_forward_length")),
        "max_position_embeddings": int(file.require(f"{name}.context_length")),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": int(file.require(f"{name}.block_count")),
        "num_key_value_heads": int(file.find(f"{name}.attention.head_count_kv") or num_heads),
        # Stored in float32, where 1e-5 reads as 9.99999974e-06.
        "rms_norm_eps": float(f"{epsilon:.6g}"),
        "rope_scaling": _rope_scaling(file, name),
        "rope_theta": float(file.find(f"{name}.rope.freq_base") or 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": "float32",
        "vocab_size": int(file.tensors["token_embd.weight"].shape[-1]),
        **_gemma_config(file, name, head_dim, hidden_size // num_heads),
        **_phi3_config(file, name, head_dim),
        **_experts_config(file, name, family),
    }


def _head_dim(file: GgufFile, name: str, hidden_per_head: int) -> int:
    if (head_dim := file.find(f"{name}.attention.key_length")) is not None:
        return int(head_dim)
    # Of Phi-3's heads only a part may turn.
    num_turning = None if name == "phi3" else file.find(f"{name}.rope.dimension_count")
    return hidden_per_head if num_turning is None else int(num_turning)


def _phi3_config(file: GgufFile, name: str, head_dim: int) -> dict[str, object]:
    """What only Phi-3 has."""
    if name != "phi3":
        return {}
    num_turning = file.find(f"{name}.rope.dimension_count")
    return {
        "partial_rotary_factor": (num_turning or head_dim) / head_dim,
        # 0 where the model has no windows.
        "sliding_window": file.find(f"{name}.attention.sliding_window") or None,
    }


def _experts_config(file: GgufFile, name: str, family: Family) -> dict[str, object]:
    if not family.has_experts:
        return {}
    num_experts = int(file.require(f"{name}.expert_count"))
    size = file.find(f"{name}.expert_feed_forward_length")
    return {
        "num_local_experts": num_experts,
        "num_experts_per_tok": int(file.require(f"{name}.expert_used_count")),
        "moe_intermediate_size": None if size is None else int(size),
        # llama.cpp weighs the chosen experts of this family so; its files do not say it.
        "norm_topk_prob": True,
    }


def _gemma_config(
    file: GgufFile, name: str, head_dim: int, hidden_per_head: int
) -> dict[str, object]:
    """What only Gemma 2 and 3 have."""
    if name not in _LARGEST_GEMMAS:
        return {}
    is_largest = file.require(f"{name}.block_count") == _LARGEST_GEMMAS[name]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden_per_head if is_largest else head_dim,
        "sliding_window": int(file.require(f"{name}.attention.sliding_window")),
        "attn_logit_softcapping": file.find(f"{name}.attn_logit_softcapping"),
        "final_logit_softcapping": file.find(f"{name}.final_logit_softcapping"),
    }


def _rope_scaling(file: GgufFile, name: str) -> dict[str, object] | None:
    if _LONG_FACTORS in file.tensors:
        return _longrope(file, name)
    if _ROPE_FACTORS in file.tensors:
        # Llama 3's scaling, computed by the converter into one factor for each pair of rows.
        factors = [float(factor) for factor in file.tensors[_ROPE_FACTORS].data]
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": int(file.require(f"{name}.context_length")),
        }
    kind = file.find(f"{name}.rope.scaling.type")
    match kind:
        case None | "none":
            return None
        case "linear":
            return {
                "rope_type": kind,
                "factor": float(file.require(f"{name}.rope.scaling.factor")),
            }
        case "yarn":
            original = file.require(f"{name}.rope.scaling.original_context_length")
            return {
                "rope_type": kind,
                "factor": float(file.require(f"{name}.rope.scaling.factor")),
                "original_max_position_embeddings": int(original),
            }
        case other:
            raise file.unsupported(f"{name}.rope.scaling.type", other, "none, linear, yarn")


def _longrope(file: GgufFile, name: str) -> dict[str, object]:
    scaling: dict[str, object] = {
        "rope_type": "longrope",
        "short_factor": [float(factor) for factor in file.tensors[_SHORT_FACTORS].data],
        "long_factor": [float(factor) for factor in file.tensors[_LONG_FACTORS].data],
        "original_max_position_embeddings": int(
            file.require(f"{name}.rope.scaling.original_context_length")
        ),
    }
    amplitude = file.find(f"{name}.rope.scaling.attn_factor")
    return scaling if amplitude is None else scaling | {"attention_factor": float(amplitude)}
