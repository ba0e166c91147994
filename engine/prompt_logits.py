"""The logits behind recent prompts, so that an equal prompt computes nothing at all."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.kv.prefix_tree import Namespace

    Key = tuple[Namespace, tuple[int, ...]]

# Beside pages for that many prompts; a row of 49,152 float32 is 192 KiB.
_SHARE_OF_PAGES = 32
_LEAST_BYTES, _MOST_BYTES = 16 << 20, 256 << 20
_LOGIT_BYTES, _TOKEN_BYTES = 4, 8
# So many of the longest unused are asked for, to find one that serves nobody.
_NUM_LOOKED_AT = 8


def most_logit_bytes(kv_bytes: int) -> int:
    """What logits of prompts may take beside pages of so many bytes: a thirty-second of them.

    From 16 to 256 MiB.
    """
    return min(max(_LEAST_BYTES, kv_bytes // _SHARE_OF_PAGES), _MOST_BYTES)


def num_kept_at_least(vocab_size: int) -> int:
    """Short prompts whose logits have room beside any pages."""
    return _LEAST_BYTES // (_LOGIT_BYTES * vocab_size)


class PromptLogits:
    """Keeps those used last, up to `most_bytes`; keys are the exact tokens, as in the prefix tree.

    A whole prompt in the cache still lacks the logits behind its last token: other engines compute
    that token, or its page, once more for each repeat. is_cached: whether all rows of a prompt are
    cached. Where they are not, evicted or freed after their last use, the logits spare nobody
    anything, and go first.
    """

    def __init__(
        self, most_bytes: int, is_cached: Callable[[Namespace, tuple[int, ...]], bool]
    ) -> None:
        self._most_bytes = most_bytes
        self._is_cached = is_cached
        self._num_bytes = 0
        self._kept: OrderedDict[Key, npt.NDArray[np.float32]] = OrderedDict()

    def keep(
        self, namespace: Namespace, tokens: list[int], logits: npt.NDArray[np.float32]
    ) -> None:
        """Remember the float32 [vocab_size] logits behind these tokens, in any case."""
        key = (namespace, tuple(tokens))
        self._drop(key)
        self._kept[key] = logits
        self._num_bytes += _bytes_of(key, logits)
        while self._num_bytes > self._most_bytes and len(self._kept) > 1:
            self._drop(self._least_useful())

    def find(self, namespace: Namespace, tokens: list[int]) -> npt.NDArray[np.float32] | None:
        """The logits behind exactly these tokens, if they are kept."""
        key = (namespace, tuple(tokens))
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def _least_useful(self) -> Key:
        oldest = next(iter(self._kept))
        # But the one that was kept just now.
        num_looked_at = min(_NUM_LOOKED_AT, len(self._kept) - 1)
        looked_at = islice(self._kept, num_looked_at)
        return next((key for key in looked_at if not self._is_cached(*key)), oldest)

    def _drop(self, key: Key) -> None:
        logits = self._kept.pop(key, None)
        if logits is not None:
            self._num_bytes -= _bytes_of(key, logits)


def _bytes_of(key: Key, logits: npt.NDArray[np.float32]) -> int:
    return logits.nbytes + _TOKEN_BYTES * len(key[1])
