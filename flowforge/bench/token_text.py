"""Texts in which every character is one token, so that a text is known by its token ids.

No text of a model's own tokenizer has a given length, and what is said need not be read back as the
same tokens. Here each id is a character of Unicode's private planes: programs, templates and
events deal with texts as they always do, and the engine gets the ids that were meant.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.bench.program_calls import Ids

_FIRST_CHARACTER = 0xF0000
MOST_IDS = 0xFFFD
"""Of a vocabulary: so many characters the first of those planes has. Ids above stay unused."""

_NOTHING_BETWEEN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def text_of(ids: Iterable[int]) -> str:
    """The text of these tokens."""
    return "".join(chr(_FIRST_CHARACTER + token_id) for token_id in ids)


def ids_of(text: str) -> Ids:
    """The tokens of a text that `text_of` gave, or a model wrote."""
    return tuple(ord(character) - _FIRST_CHARACTER for character in text)


def token_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of this kind; it has no control tokens, so nothing ends an answer early."""
    whole: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "vocab": {text_of([token_id]): token_id for token_id in range(vocab_size)},
            "merges": [],
        },
    }
    return Tokenizer(json.dumps(whole))


def plain_template(tokenizer: Tokenizer) -> ChatTemplate:
    """A chat template that puts nothing between messages: a prompt is as long as what is said."""
    return ChatTemplate(_NOTHING_BETWEEN, tokenizer)
