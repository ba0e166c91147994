"""A vocabulary of the 256 bytes and some control tokens, for constraints without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.grammars import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.constraint import TokenConstraint

END = "<end>"


@dataclass(frozen=True, slots=True)
class ByteVocabulary:
    """One token for each byte, then `END`, then the control tokens."""

    vocabulary: Vocabulary
    tokenizer: Tokenizer
    control_ids: dict[str, int]

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are meant."""
        return self.tokenizer.encode_scaffolding(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, control tokens shown."""
        return self.tokenizer.decode(token_ids, skip_special=False)

    def allowed(self, state: TokenConstraint) -> list[int]:
        """What the mask leaves, end tokens aside."""
        mask = np.empty(self.vocabulary.num_mask_words, dtype=np.uint32)
        state.fill_mask(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return [int(one) for one in np.flatnonzero(bits) if one not in self.vocabulary.eos_ids]


def byte_vocabulary(control: Sequence[str] = (), ends: Sequence[str] = (END,)) -> ByteVocabulary:
    """Build one. ends: those of the control tokens that end an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: idx for idx, character in enumerate(alphabet)}
    backend = BackendTokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = list(dict.fromkeys([*ends, *control]))
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    ids = {name: len(alphabet) + idx for idx, name in enumerate(names)}
    source = backend.to_str()
    end_ids = [ids[name] for name in ends]
    configs = {"tokenizer_config.json": {"eos_token": ends[0]}}
    tokenizer = Tokenizer(source, eos_ids=end_ids, adds_bos=False, configs=configs)
    vocabulary = Vocabulary(source, eos_ids=end_ids, vocab_size=backend.get_vocab_size())
    return ByteVocabulary(vocabulary, tokenizer, ids)
