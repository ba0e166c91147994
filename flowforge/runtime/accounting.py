"""What a run cost, added up from what each generation reports.

`unique_prompt_tokens` is U: the distinct positions of the trie of all prompts, less those that
decoding had written before. Decoding writes KV for every output token but the last, which nobody
has fed back yet, unless the backend says otherwise (`num_written`). U comes from token ids and not
from a backend's counters, so that prefilled = U is a statement about the backend, not an identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.prefix_trie import PrefixTrie
from flowforge.runtime.events import Accounting

if TYPE_CHECKING:
    from flowforge.backends.protocol import BackendStatistics, GenerationDone


class AccountBook:
    """Takes every `GenerationDone` of a run in order of completion; owned by the run's shell."""

    def __init__(self) -> None:
        self._trie = PrefixTrie()
        self._num_unique: int | None = 0
        self._num_prefilled = 0
        self._num_reused = 0
        self._num_generated = 0

    def enter(self, done: GenerationDone) -> None:
        """Count one generation. Without token ids U is unknown from here on."""
        self._num_prefilled += done.usage.prefilled_tokens
        self._num_reused += done.usage.reused_tokens
        self._num_generated += done.usage.generated_tokens
        if done.prompt_ids is None or done.output_ids is None:
            self._num_unique = None
        if self._num_unique is not None:
            assert done.prompt_ids is not None
            assert done.output_ids is not None
            self._num_unique += self._trie.add(done.prompt_ids)
            self._trie.add(done.prompt_ids + done.output_ids[: _num_written(done)])

    def total(self, backend: BackendStatistics, duration_s: float) -> Accounting:
        """The sums so far, beside the backend's pages."""
        return Accounting(
            prefilled_tokens=self._num_prefilled,
            reused_tokens=self._num_reused,
            generated_tokens=self._num_generated,
            unique_prompt_tokens=self._num_unique,
            pages_peak=backend.pages_peak,
            pages_total=backend.pages_total,
            duration_s=duration_s,
        )


def _num_written(done: GenerationDone) -> int:
    assert done.output_ids is not None
    return max(0, len(done.output_ids) - 1) if done.num_written is None else done.num_written
