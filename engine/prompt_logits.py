"""The logits behind recent prompts, so that an equal prompt computes nothing at all."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.kv.prefix_tree import Namespace

    Key = tuple[Namespace, tuple[int, ...]]

# 32 rows of 49,152 float32 are 6 MB.
MOST_KEPT = 32


class PromptLogits:
    """Keeps the last few; keys are the exact tokens, as in the prefix tree.

    A whole prompt in the cache still lacks the logits behind its last token: other engines compute
    that token, or its page, once more for each repeat.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, npt.NDArray[np.float32]] = OrderedDict()

    def keep(
        self, namespace: Namespace, tokens: list[int], logits: npt.NDArray[np.float32]
    ) -> None:
        """Remember the float32 [vocab_size] logits behind these tokens."""
        key = (namespace, tuple(tokens))
        self._kept[key] = logits
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def find(self, namespace: Namespace, tokens: list[int]) -> npt.NDArray[np.float32] | None:
        """The logits behind exactly these tokens, if they are kept."""
        return self._kept.get((namespace, tuple(tokens)))
