"""How many tokens generations will still write, from how far earlier ones went."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.sequence import Generation

# What an ended generation leaves of the weight of those before it.
_KEPT = 0.9


class OutputForecast:
    """Of the tokens that generations may write at most, the share that they do write.

    Before any has ended that is all of them: who asks for 300 is given room for 300. Generations
    that were asked for without a number are not counted: theirs says nothing.
    """

    def __init__(self) -> None:
        self._written = 0.0
        self._allowed = 0.0

    def ended(self, generation: Generation) -> None:
        """Learn from a generation that came to its end by itself."""
        if generation.request.params.max_tokens is None:
            return
        self._written = _KEPT * self._written + generation.num_output
        self._allowed = _KEPT * self._allowed + generation.max_tokens

    def num_left(self, generation: Generation | None) -> int:
        """Tokens that a generation has still to write, as far as can be said; 0 where it cannot."""
        if generation is None or generation.request.params.max_tokens is None:
            return 0
        share = self._written / self._allowed if self._allowed else 1.0
        return max(0, ceil(share * generation.max_tokens) - generation.num_output)
