"""What a run's steps computed, for whom: the accesses that another order of eviction is held to."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from flowforge.bench.program_calls import Ids, Texts
    from flowforge.engine.sequence import Sequence
    from flowforge.engine.statistics import EngineStatistics
    from flowforge.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Progress:
    """A sequence in a step. num_tokens: computed of it when the step is over."""

    call_idx: int
    num_tokens: int


@dataclass(slots=True)
class StepLog:
    """Every step's sequences, in order. Give `note` to `EngineCore.watch_plans`.

    num_rows: that the last plan computes.
    """

    page_size: int
    steps: list[tuple[Progress, ...]] = field(default_factory=list[tuple[Progress, ...]])
    num_rows: int = 0

    def note(self, plan: StepPlan) -> None:
        """A step is about to be computed."""
        self.num_rows = plan.num_tokens
        computed = [Progress(chunk.sequence.id - 1, chunk.stop) for chunk in plan.chunks]
        ready = [Progress(one.id - 1, one.num_computed) for one in plan.ready]
        self.steps.append((*computed, *ready))


class LivePages:
    """The pages that running calls need: full ones once for all, a filled part of one for each."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._num_tokens: dict[int, int] = {}

    def noted(self, step: tuple[Progress, ...], texts: Texts) -> None:
        """These calls ran; the whole prompt of each has its pages."""
        for one in step:
            self._num_tokens[one.call_idx] = max(one.num_tokens, len(texts.prompts[one.call_idx]))

    def ended(self, call_idx: int) -> None:
        """A call is over."""
        del self._num_tokens[call_idx]

    def count(self, tokens_of: Callable[[int], Ids]) -> int:
        """Pages of all calls that run. O(their pages)."""
        live = self._num_tokens.items()
        return num_distinct_pages(
            self._page_size, (tokens_of(idx)[:num_tokens] for idx, num_tokens in live)
        )


class TimedSteps:
    """When each step began, how many rows it computes and for whom: for runs in real time.

    Give `note` to `EngineCore.watch_plans`. A call is known by its seed, which is its index.
    starts_s: by the monotonic clock, one a step, as num_rows.
    """

    def __init__(self, statistics: Callable[[], EngineStatistics]) -> None:
        """statistics: as of the end of the step before."""
        self._statistics = statistics
        self._calls: dict[int, _Seen] = {}
        self._peak_pages = 0
        self._peak_step = 0
        self.starts_s: list[float] = []
        self.num_rows: list[int] = []

    def note(self, plan: StepPlan) -> None:
        """A step is about to be computed."""
        self.look()
        step = len(self.starts_s)
        self.starts_s.append(time.monotonic())
        self.num_rows.append(plan.num_tokens)
        for chunk in plan.chunks:
            self._note(step, chunk.sequence, chunk.stop)
        for sequence in plan.ready:
            self._note(step, sequence, sequence.num_computed)

    def look(self) -> None:
        """See whether the last step held more pages than all before it."""
        peak_pages = self._statistics().kv.pages_peak_held
        if peak_pages > self._peak_pages:
            self._peak_pages, self._peak_step = peak_pages, max(0, len(self.starts_s) - 1)

    def least_pages(self, page_size: int, continued_by: Mapping[int, Collection[int]]) -> int:
        """Pages of the contexts that were needed when most were held.

        They are those of calls that ran, each with its whole prompt, and of ended ones that a call
        goes on with which has not run yet. continued_by: the calls that go on with each.
        """
        at = self._peak_step
        live = (
            seen.tokens_at(at)
            for idx, seen in self._calls.items()
            if seen.steps[0] <= at
            and (at <= seen.steps[-1] or any(map(self._waits, continued_by.get(idx, ()))))
        )
        return num_distinct_pages(page_size, live)

    def _waits(self, idx: int) -> bool:
        """Whether a call had not run yet when most pages were held."""
        return idx not in self._calls or self._calls[idx].steps[0] > self._peak_step

    def _note(self, step: int, sequence: Sequence, num_tokens: int) -> None:
        generation = sequence.generation
        seed = None if generation is None else generation.request.params.seed
        if seed is None:
            # Computed ahead for a call that is not there yet.
            return
        seen = self._calls.get(seed)
        if seen is None:
            seen = self._calls[seed] = _Seen(sequence.tokens, len(sequence.tokens))
        seen.steps.append(step)
        seen.num_tokens.append(num_tokens)


@dataclass(slots=True)
class _Seen:
    """A call that ran. tokens: of its sequence, which only grow from its first step on."""

    tokens: list[int]
    prompt_len: int
    steps: list[int] = field(default_factory=list[int])
    num_tokens: list[int] = field(default_factory=list[int])

    def tokens_at(self, step: int) -> Ids:
        """What was computed of it by the end of a step, or was about to be of its prompt."""
        num_tokens = self.num_tokens[bisect_right(self.steps, step) - 1]
        return tuple(self.tokens[: max(num_tokens, self.prompt_len)])


def num_distinct_pages(page_size: int, texts: Iterable[Ids]) -> int:
    """Pages of these texts: full ones once for all, a filled part of one for each."""
    known: dict[tuple[int, Ids], int] = {}
    num_parts = 0
    for tokens in texts:
        page, whole = 0, len(tokens) - len(tokens) % page_size
        for start in range(0, whole, page_size):
            page = known.setdefault((page, tokens[start : start + page_size]), len(known) + 1)
        num_parts += whole < len(tokens)
    return len(known) + num_parts
