"""Who of the waiting sequences is admitted next, and who steps aside: decisions only.

Order. Priority, then the longest cached prefix (SGLang); every step of waiting counts as
`_AGE_BONUS` tokens of it, every token of the longest chain that its program writes from it on as
`_CHAIN_BONUS`; where nothing comes behind it, its own are none: a lone long request is no chain.
Of equal priority a sequence is overtaken only by those that come within
`most of prefix and chain / _AGE_BONUS` steps after it, so none starves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.kv.tokens import common_prefix_len

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.output_forecast import OutputForecast
    from flowforge.engine.policy import SchedulingPolicy
    from flowforge.engine.sequence import Sequence

# Tokens of cached prefix that a step of waiting is worth.
_AGE_BONUS = 32
# And a token that the longest chain of its program writes from it on: `flowforge bench workflows`.
_CHAIN_BONUS = 2
# Only so many, the first in rank, are ordered by prefix: looking prefixes up is not free.
_MOST_ORDERED = 64


class Admission:
    """Looks at the cache and changes nothing. forecast: learns from the scheduler."""

    def __init__(self, kv: KvCache, policy: SchedulingPolicy, forecast: OutputForecast) -> None:
        self._kv = kv
        self._policy = policy
        self._forecast = forecast

    def in_order(self, waiting: list[Sequence], num_steps: int) -> Iterator[tuple[Sequence, int]]:
        """The next one first, each with the number of tokens that are cached of it.

        waiting: in order of rank. num_steps: the number of this step.
        """

        def place(entry: tuple[Sequence, int]) -> tuple[int, int, int]:
            sequence, known_len = entry
            priority, arrival = sequence.rank
            if self._policy.admission == "arrival":
                return priority, 0, arrival
            age = num_steps - sequence.started_step
            worth = known_len + _AGE_BONUS * age + _CHAIN_BONUS * self._chain_len(sequence)
            return priority, -worth, arrival

        first = [(one, self._known_len(one)) for one in waiting[:_MOST_ORDERED]]
        yield from sorted(first, key=place)
        for sequence in waiting[_MOST_ORDERED:]:
            yield sequence, self._known_len(sequence)

    def num_spared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Pages for what the running ones and this one will still write; none for it alone."""
        others = list(running)
        if not others or not self._policy.spares_output:
            return 0
        own_len = len(sequence.tokens)
        own = self._kv.num_pages_of(own_len + self._forecast.num_left(sequence.generation))
        num_spared = own - self._kv.num_pages_of(own_len)
        for other in others:
            assert other.path is not None, "a running sequence has a path"
            most = len(other.tokens) + self._forecast.num_left(other.generation)
            num_spared += self._kv.num_missing(other.path, most)
        return num_spared

    def waits_for_a_prefix(
        self, sequence: Sequence, known_len: int, running: Iterable[Sequence]
    ) -> bool:
        """Whether a running sequence is about to compute tokens that this one needs as well.

        In-batch duplicates (SGLang, TensorRT-LLM): the first fills, the rest wait for it and hit.
        Rows that are in flight are there for others once they are read.
        """
        if not self._policy.spares_duplicates or self._policy.reuse == "none":
            return False
        limit = sequence.num_reusable
        for other in running:
            if other.num_pending == 0 or other.namespace != sequence.namespace:
                continue
            shared = min(common_prefix_len(sequence.tokens, other.tokens), limit)
            if self._policy.reuse == "pages":
                shared = self._whole_pages(shared)
            if shared > max(other.num_computed, known_len):
                return True
        return False

    def _chain_len(self, sequence: Sequence) -> int:
        if sequence.generation is None or not self._policy.critical_first:
            return 0
        num_following = sequence.generation.request.num_following
        num_own = self._forecast.num_left(sequence.generation)
        return num_following + num_own if num_following > 0 else 0

    def _known_len(self, sequence: Sequence) -> int:
        limit = sequence.num_reusable
        if self._policy.reuse == "none":
            return 0
        known_len = self._kv.match_len(sequence.namespace, sequence.tokens, limit)
        return known_len if self._policy.reuse == "tokens" else self._whole_pages(known_len)

    def _whole_pages(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self._kv.page_size
