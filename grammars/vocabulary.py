"""The tokens that a constraint chooses from: one model's vocabulary, prepared for masks."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from flowforge.errors import EngineError
from flowforge.grammars.closing import closing_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llguidance import LLTokenizer

_NOT_IN_TEXT = "\U0010fffd"


class Vocabulary:
    """One model's tokens, ready for constraints. Immutable; built once per model (about 0.5 s).

    vocab_size: the width of the model's logits; ids past the tokenizer's own are never allowed.
    eos_ids: every id that may end a constrained output, and only where it may end.
    control_ids: tokens that stand apart from ordinary text, by their own: no free text of a
    constrained output holds one.
    fingerprint: of the tokenizer, the end tokens and the width; what compiled constraints may be
    cached under, together with their source.
    """

    def __init__(self, tokenizer_json: str, *, eos_ids: Iterable[int], vocab_size: int) -> None:
        """Prepare the vocabulary of a Hugging Face `tokenizer.json`.

        Raises EngineError EN311 when there is no end token, or text and sizes do not fit together.
        """
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = vocab_size
        if not self.eos_ids or not all(0 <= eos_id < vocab_size for eos_id in self.eos_ids):
            raise _unfit(
                f"end tokens {sorted(self.eos_ids)}, expected one or more in 0..{vocab_size - 1}"
            )
        ends = sorted(self.eos_ids)
        identity = f"{ends}/{vocab_size}/{tokenizer_json}"
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        raw = _parsed(tokenizer_json)
        self.control_ids: Mapping[str, int] = {
            str(token["content"]): int(token["id"]) for token in _controls_of(raw)
        }
        self.backend = _build(raw, ends, vocab_size)
        self.closing_tokens = closing_tokens(self.backend)

    @property
    def num_mask_words(self) -> int:
        """Length of a mask in uint32 words."""
        return (self.vocab_size + 31) // 32

    @property
    def eos_texts(self) -> frozenset[str]:
        """The texts of the end tokens."""
        return frozenset(text for text, one in self.control_ids.items() if one in self.eos_ids)

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.vocab_size} eos={sorted(self.eos_ids)})"


def _parsed(tokenizer_json: str) -> dict[str, Any]:
    try:
        raw = json.loads(tokenizer_json)
    except ValueError as error:
        raise _unfit(str(error)) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise _unfit("tokenizer.json describes no model")
    return raw


def _controls_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens that stand apart: those that were added, but for white space, which is text."""
    vocab = raw["model"].get("vocab")
    known = vocab if isinstance(vocab, dict) else {}
    added = raw.get("added_tokens") or []
    return [one for one in added if not (one["content"].isspace() and one["content"] in known)]


# Beside llguidance's own: tokens that are words, which names and patterns allow all at once; and
# finer steps of length, for strings of which only so many characters are left.
_WORD_SLICES = ("[a-zA-Z]{1,10}", "[a-zA-Z0-9]{1,16}", "[a-zA-Z0-9]+")
_LENGTH_SLICES = tuple(rf'[^"\\\x00-\x1F\x7F]{{1,{most}}}' for most in (13, 16))


def _build(raw: dict[str, Any], eos_ids: list[int], vocab_size: int) -> LLTokenizer:
    # Here and not above: the import takes 150 ms, which `flowforge --help` does not have.
    from llguidance import LLTokenizer

    apart = json.dumps(_with_controls_apart(raw), ensure_ascii=False)
    try:
        space, *rest = LLTokenizer.general_slices()
        slices = [space, *_WORD_SLICES, *_LENGTH_SLICES, *rest]
        return LLTokenizer(apart, n_vocab=vocab_size, eos_token=eos_ids, slices=slices)
    except ValueError as error:
        raise _unfit(str(error)) from error


def _with_controls_apart(raw: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer with its control tokens renamed to what no text spells.

    The tokenizer library turns the text of such a token into the token, and llguidance asks it
    how forced text is written: a text of '<|im_end|>' would end the answer.
    """
    controls = _controls_of(raw)
    renamed = {str(token["content"]): f"{_NOT_IN_TEXT}{token['content']}" for token in controls}
    added = [{**token, "content": renamed[token["content"]]} for token in controls]
    model = dict(raw["model"])
    vocab, unknown = model.get("vocab"), model.get("unk_token")
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(text, text): number for text, number in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[renamed.get(text, text), score] for text, score in vocab]
    if isinstance(unknown, str):
        model["unk_token"] = renamed.get(unknown, unknown)
    # What stands around a whole prompt is none of a mask's business, and names control tokens.
    return {**raw, "added_tokens": added, "model": model, "post_processor": None}


def _unfit(reason: str) -> EngineError:
    return EngineError(
        "EN311",
        f"the vocabulary cannot be constrained: {reason}",
        help="the model's tokenizer.json, end tokens and vocab_size must belong together",
    )
