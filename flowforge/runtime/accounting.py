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
from flowforge.runtime.events import Accounting, ModelAccounting

if TYPE_CHECKING:
    from flowforge.backends.protocol import (
        BackendStatistics,
        GenerationCut,
        GenerationDone,
        ScoringDone,
        Usage,
    )


class AccountBook:
    """Takes what every work with a model comes to, in order; owned by the run's shell.

    model: which one it was, None for the run's own; tokens of different models are never the same.
    """

    def __init__(self) -> None:
        self._accounts: dict[str | None, _Account] = {}

    def enter(self, done: GenerationDone, model: str | None = None) -> None:
        """Count one generation. Without token ids U is unknown from here on."""
        account = self._account(model)
        account.count(done.usage)
        account.num_generated -= done.num_restored
        prompt_ids, output_ids = done.prompt_ids, done.output_ids
        if done.num_restored and prompt_ids is not None and output_ids is not None:
            prompt_ids += output_ids[: done.num_restored]
            output_ids = output_ids[done.num_restored :]
        account.note(prompt_ids, output_ids, done.num_written)

    def enter_cut(self, cut: GenerationCut, model: str | None = None) -> None:
        """Count what a generation cost that did not come to its end."""
        account = self._account(model)
        account.count(cut.usage)
        account.num_cut += cut.usage.generated_tokens
        account.note(cut.prompt_ids, cut.output_ids, cut.num_written)

    def enter_scoring(self, done: ScoringDone, model: str | None = None) -> None:
        """Count one scoring of texts."""
        account = self._account(model)
        account.count(done.usage)
        if done.prompts is None:
            account.note(None, None, None)
        for prompt_ids in done.prompts or ():
            account.note(prompt_ids, (), 0)

    def total(self, backend: BackendStatistics, duration_s: float) -> Accounting:
        """The sums so far, beside the backend's pages; of each model where there are several."""
        of_each = [account.total(model) for model, account in self._accounts.items()]
        uniques = [one.unique_prompt_tokens for one in of_each]
        known = [unique for unique in uniques if unique is not None]
        return Accounting(
            prefilled_tokens=sum(one.prefilled_tokens for one in of_each),
            reused_tokens=sum(one.reused_tokens for one in of_each),
            generated_tokens=sum(one.generated_tokens for one in of_each),
            cut_tokens=sum(one.cut_tokens for one in of_each),
            unique_prompt_tokens=sum(known) if len(known) == len(uniques) else None,
            pages_peak=backend.pages_peak,
            pages_total=backend.pages_total,
            duration_s=duration_s,
            models=tuple(of_each) if len(of_each) > 1 else (),
        )

    def _account(self, model: str | None) -> _Account:
        return self._accounts.setdefault(model, _Account())


class _Account:
    """The books of one model."""

    def __init__(self) -> None:
        self.num_prefilled = 0
        self.num_reused = 0
        self.num_generated = 0
        self.num_cut = 0
        self._num_unique: int | None = 0
        self._trie = PrefixTrie()

    def count(self, usage: Usage) -> None:
        self.num_prefilled += usage.prefilled_tokens
        self.num_reused += usage.reused_tokens
        self.num_generated += usage.generated_tokens

    def note(
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

    def total(self, model: str | None) -> ModelAccounting:
        return ModelAccounting(
            model=model,
            prefilled_tokens=self.num_prefilled,
            reused_tokens=self.num_reused,
            generated_tokens=self.num_generated,
            unique_prompt_tokens=self._num_unique,
            cut_tokens=self.num_cut,
        )
