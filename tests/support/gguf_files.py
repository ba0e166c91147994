"""Writing small models as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float32]

CONTROL, NORMAL = 3, 1
TOKENS = ["<|end|>", "a", "b", "ab", "c", *(f"t{idx}" for idx in range(27))]

_GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_POST_NORM_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_PAIRED_ROWS = ("llama", "smollm3")


@dataclass(frozen=True, slots=True)
class GgufSettings:
    """What a file says beside the model; metadata keys of it go without its name.

    kinds: the type of tensors whose name ends so, F32 for the others. tensors: more of them.
    """

    architecture: str = "llama"
    tokenizer: str = "gpt2"
    pre: str = "smollm"
    metadata: dict[str, int | float | str] = field(default_factory=dict)
    kinds: dict[str, gguf.GGMLQuantizationType] = field(default_factory=dict)
    tensors: dict[str, FloatArray] = field(default_factory=dict)


def write_gguf(path: Path, model: Any, settings: GgufSettings) -> None:
    """Write a model of transformers into a file."""
    writer = gguf.GGUFWriter(path, settings.architecture)
    add_shape(writer, model.config)
    for key, value in settings.metadata.items():
        full_key = key if key.startswith("split.") else f"{settings.architecture}.{key}"
        match value:
            case str():
                writer.add_string(full_key, value)
            case int():
                writer.add_uint32(full_key, value)
            case float():
                writer.add_float32(full_key, value)
    add_tokenizer(writer, settings)
    for name, values in (gguf_tensors(model, settings.architecture) | settings.tensors).items():
        kind = next((kind for end, kind in settings.kinds.items() if name.endswith(end)), None)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, settings: GgufSettings) -> None:
    """Add a small vocabulary: byte-level BPE, or SentencePiece pieces with scores."""
    writer.add_tokenizer_model(settings.tokenizer)
    writer.add_tokenizer_pre(settings.pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL] + [NORMAL] * (len(TOKENS) - 1))
    if settings.tokenizer == "gpt2":
        writer.add_token_merges(["a b"])
    else:
        writer.add_token_scores([-float(idx) for idx in range(len(TOKENS))])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def gguf_tensors(model: Any, architecture: str) -> dict[str, FloatArray]:
    """The tensors of a model under their GGUF names, rows and norms as the format has them."""
    names = _POST_NORM_NAMES if architecture in ("gemma2", "gemma3") else _LAYER_NAMES
    heads = {
        "attn_q": model.config.num_attention_heads,
        "attn_k": model.config.num_key_value_heads,
    }
    tensors: dict[str, FloatArray] = {}
    for hf_name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if architecture.startswith("gemma") and "norm" in hf_name:
            values = values + 1
        if hf_name in _GLOBAL_NAMES:
            if hf_name != "lm_head.weight" or not model.config.tie_word_embeddings:
                tensors[_GLOBAL_NAMES[hf_name]] = values
            continue
        _, _, layer_idx, rest = hf_name.split(".", 3)
        if rest == "mlp.experts.gate_up_proj":  # [experts, gate then up, hidden]
            half = values.shape[1] // 2
            tensors[f"blk.{layer_idx}.ffn_gate_exps.weight"] = values[:, :half].copy()
            tensors[f"blk.{layer_idx}.ffn_up_exps.weight"] = values[:, half:].copy()
            continue
        rest = rest if rest.endswith((".weight", ".bias")) else f"{rest}.weight"
        inner, _, kind = rest.rpartition(".")
        name = names[inner]
        if architecture in _PAIRED_ROWS and name in heads:
            values = _paired_rows(values, heads[name])
        tensors[f"blk.{layer_idx}.{name}.{kind}"] = values
    return tensors


def _paired_rows(values: FloatArray, num_heads: int) -> FloatArray:
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def add_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add what the file says of the sizes of a model."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    if writer.arch != "phi3":  # of which the converter says only how many rows turn
        writer.add_key_length(head_dim)
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes.get("full_attention", ropes)["rope_theta"])
