"""The text part of a model that also sees images: its section of config.json and its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

# By the whole model's architecture: the text part's, and what the published files leave out of its
# section because transformers knows it (Gemma3TextConfig).
_TEXT_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma3ForConditionalGeneration": (
        "Gemma3ForCausalLM",
        {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
    )
}
# Older and newer spelling of where the text part's tensors are.
_PREFIXES = (("language_model.", ""), ("model.language_model.", "model."))


def text_section(content: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the text part; the same content for a model of text alone."""
    architectures = content.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    section = content.get("text_config")
    if name not in _TEXT_PARTS or not isinstance(section, dict):
        return content
    architecture, defaults = _TEXT_PARTS[name]
    given = {key: value for key, value in section.items() if value is not None}
    outer = {key: content[key] for key in ("quantization_config",) if key in content}
    return defaults | outer | cast("dict[str, Any]", given) | {"architectures": [architecture]}


def text_tensors(tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors of the text part under the names that they have in a model of text alone."""
    for prefix, short in _PREFIXES:
        found = {
            short + name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        if found:
            heads = {name: tensors[name] for name in tensors if name.startswith("lm_head.")}
            return heads | found
    return dict(tensors)
