"""The tokenizer files that a GGUF file stands for: tokenizer.json and tokenizer_config.json.

Two kinds: byte-level BPE with its merges ("gpt2"), and SentencePiece BPE ("llama"), whose merges
follow from the scores of the pieces: the pair that makes the best piece goes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowforge.engine.models.gguf_file import GgufFile

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # GGUF token types; 3, 4 are matched before BPE runs
_SPACE = "▁"

# How a text is cut before byte-level BPE, as the models' own tokenizers publish it; they differ in
# how many digits stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2, _LLAMA3 = _WORDS.format(digits=""), _WORDS.format(digits="{1,3}")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Pieces, their types and scores by id; no scores in byte-level vocabularies."""

    tokens: list[str]
    types: list[int]
    scores: list[float] | None

    @property
    def ids(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}


def gguf_tokenizer(file: GgufFile) -> str:
    """The text of tokenizer.json. Raises EngineError EN131 or EN132."""
    vocabulary = _vocabulary(file)
    match file.require("tokenizer.ggml.model"):
        case "gpt2":
            tokenizer, is_normalized = _byte_level_bpe(file, vocabulary), False
        case "llama":
            # User-defined pieces hold spaces as normalised text does. Where normalising also puts
            # one in front, it would do so to the pieces.
            is_normalized = not _has_space_prefix(file)
            tokenizer = _sentencepiece_bpe(file, vocabulary)
        case other:
            supported = "'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE)"
            raise file.unsupported("tokenizer.ggml.model", other, supported)
    _add_tokens(tokenizer, vocabulary, is_normalized=is_normalized)
    return str(tokenizer.to_str(pretty=False))


def gguf_tokenizer_config(file: GgufFile, max_context_len: int) -> dict[str, object]:
    """The content of tokenizer_config.json, chat template included. Raises EngineError EN131."""
    vocabulary = _vocabulary(file)
    is_sentencepiece = file.require("tokenizer.ggml.model") == "llama"
    adds_bos = file.find("tokenizer.ggml.add_bos_token")
    settings: dict[str, object] = {
        # The general class takes tokenizer.json as it is; a family's class may rebuild it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_context_len,
        "add_bos_token": is_sentencepiece if adds_bos is None else bool(adds_bos),
        "chat_template": file.find("tokenizer.chat_template"),
        "added_tokens_decoder": {
            str(token_id): {"content": token, "special": True, "normalized": False}
            for token_id, (token, kind) in enumerate(
                zip(vocabulary.tokens, vocabulary.types, strict=True)
            )
            if kind == _CONTROL
        },
    }
    for kind, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token_id = file.find(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            settings[f"{kind}_token"] = vocabulary.tokens[token_id]
    return settings


def _vocabulary(file: GgufFile) -> _Vocabulary:
    return _Vocabulary(
        file.require("tokenizer.ggml.tokens"),
        file.require("tokenizer.ggml.token_type"),
        file.find("tokenizer.ggml.scores"),
    )


def _add_tokens(tokenizer: Any, vocabulary: _Vocabulary, *, is_normalized: bool) -> None:
    from tokenizers import AddedToken

    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=is_normalized)])


# --- byte-level BPE ------------------------------------------------------------------------------


def _byte_level_bpe(file: GgufFile, vocabulary: _Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = [_merge(rule) for rule in file.require("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges))
    if file.require("tokenizer.ggml.pre") == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(file)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merge(rule: str) -> tuple[str, str]:
    left, right = rule.split(" ", 1)
    return left, right


def _pre_tokenizer(file: GgufFile) -> Any:
    from tokenizers import Regex, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    match file.require("tokenizer.ggml.pre"):
        case "gpt-2":
            return byte_level
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, byte_level])
        case "qwen2":
            words = Regex(_QWEN2)
        case "llama-bpe" | "smaug-bpe":
            words = Regex(_LLAMA3)
        case other:
            supported = "'gpt-2', 'smollm', 'qwen2', 'llama-bpe', 'smaug-bpe'"
            raise file.unsupported("tokenizer.ggml.pre", other, supported)
    split = pre_tokenizers.Split(words, behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, bytes_only])


# --- SentencePiece BPE ---------------------------------------------------------------------------


def _sentencepiece_bpe(file: GgufFile, vocabulary: _Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = [
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind == _UNKNOWN
    ]
    has_prefix = _has_space_prefix(file)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_by_score(file, vocabulary),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = [normalizers.Replace(" ", _SPACE)]
    prefix = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, *spaces])
    to_text = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence([*to_text, *strip])
    return tokenizer


def _has_space_prefix(file: GgufFile) -> bool:
    said = file.find("tokenizer.ggml.add_space_prefix")
    return True if said is None else bool(said)


def _merges_by_score(file: GgufFile, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a piece of two, the best piece first; of one piece, early halves first."""
    scores = vocabulary.scores
    if scores is None:
        scores = file.require("tokenizer.ggml.scores")
    ids = vocabulary.ids
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token_id], ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
