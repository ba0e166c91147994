"""What a run cost, added up from what each generation and each scoring reports.

`unique_prompt_tokens` is U: the distinct positions of the trie of all prompts, less those that
decoding had written before. Decoding writes KV for every output token but the last, which nobody
has fed back yet, unless the backend says otherwise (`num_written`). U comes from token ids and not
from a backend's counters, so that prefilled = U is a statement about the backend, not an identity.
Texts that are scored are prompts, each behind what it was scored on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.prefix_trie import PrefixTrie
from flowforge.runtime.events import Accounting

if TYPE_CHECKING:
    from flowforge.backends.protocol import (
        BackendStatistics,
        GenerationCut,
        GenerationDone,
        ScoringDone,
        Usage,
    )


class AccountBook:
    """Takes what every work with a model comes to, in order; owned by the run's shell."""

    def __init__(self) -> None:
        self._trie = PrefixTrie()
        self._num_unique: int | None = 0
        self._num_prefilled = 0
        self._num_reused = 0
        self._num_generated = 0
        self._num_cut = 0

    def enter(self, done: GenerationDone) -> None:
        """Count one generation. Without token ids U is unknown from here on."""
        self._count(done.usage)
        self._num_generated -= done.num_restored
        prompt_ids, output_ids = done.prompt_ids, done.output_ids
        if done.num_restored and prompt_ids is not None and output_ids is not None:
            prompt_ids += output_ids[: done.num_restored]
            output_ids = output_ids[done.num_restored :]
        self._note(prompt_ids, output_ids, done.num_written)

    def enter_cut(self, cut: GenerationCut) -> None:
        """Count what a generation cost that did not come to its end."""
        self._count(cut.usage)
        self._num_cut += cut.usage.generated_tokens
        self._note(cut.prompt_ids, cut.output_ids, cut.num_written)

    def enter_scoring(self, done: ScoringDone) -> None:
        """Count one scoring of texts."""
        self._count(done.usage)
        if done.prompts is None:
            self._num_unique = None
        for prompt_ids in done.prompts or ():
            self._note(prompt_ids, (), 0)

    def _count(self, usage: Usage) -> None:
        self._num_prefilled += usage.prefilled_tokens
        self._num_reused += usage.reused_tokens
        self._num_generated += usage.generated_tokens

    def _note(
        self,
        prompt_ids: tuple[int, ...] | None,
        output_ids: tuple[int, ...] | None,
        num_written: int | None,
    ) -> None:
        if prompt_ids is None or output_ids is None:
            self._num_unique = None
        elif self._num_unique is not None:
            if num_written is None:
                num_written = max(0, len(output_ids) - 1)
            self._num_unique += self._trie.add(prompt_ids)
            self._trie.add(prompt_ids + output_ids[:num_written])

    def total(self, backend: BackendStatistics, duration_s: float) -> Accounting:
        """The sums so far, beside the backend's pages."""
        return Accounting(
            prefilled_tokens=self._num_prefilled,
            reused_tokens=self._num_reused,
            generated_tokens=self._num_generated,
            cut_tokens=self._num_cut,
            unique_prompt_tokens=self._num_unique,
            pages_peak=backend.pages_peak,
            pages_total=backend.pages_total,
            duration_s=duration_s,
        )
