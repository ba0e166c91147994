"""How long one sequence can be, and what is said to a request that is longer."""

from __future__ import annotations

from dataclasses import dataclass

from flowforge.errors import EngineError


@dataclass(frozen=True, slots=True)
class Capacity:
    """context_len: tokens that the model is loaded for. pool_len: tokens that all pages hold."""

    context_len: int
    pool_len: int

    @property
    def num_tokens(self) -> int:
        """Of one sequence. The last token is sampled and never computed: it needs no row."""
        return min(self.context_len, self.pool_len + 1)

    def misfit(self, prompt_len: int, max_tokens: int | None) -> EngineError:
        """The error EN202 for a request that can never run."""
        is_context = self.context_len <= self.pool_len
        limit = (
            f"a context of {self.context_len} tokens"
            if is_context
            else f"a pool of {self.pool_len} tokens"
        )
        asked = f"a prompt of {prompt_len} tokens"
        if max_tokens is not None:
            asked += f" and up to {max_tokens} new ones"
        return EngineError(
            "EN202",
            f"{asked} cannot fit into {limit}",
            help="shorten the prompt or lower max_tokens"
            if is_context
            else "shorten the prompt, lower max_tokens or give the engine more pages",
        )
