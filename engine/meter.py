"""Counts what the engine does and how long it takes; `statistics` says what the numbers mean."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

from flowforge.engine.statistics import (
    Distribution,
    LatencyStatistics,
    NamespaceStatistics,
    PrefixCacheStatistics,
    ReadStatistics,
    RequestStatistics,
    StepStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.sequence import Generation, GenerationUsage
    from flowforge.engine.step_plan import StepPlan

Outcome = Literal["stop", "length", "failed", "aborted"]

# From 10 µs to 6 minutes, each bound 1.41 times the one before.
_BOUNDS_S = tuple(1e-5 * 2 ** (k / 2) for k in range(51))
# A salt per user makes namespaces without end: only those used last are told apart.
_MOST_NAMESPACES = 1024


class Histogram:
    """Counts seconds in buckets. Constant memory."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._total_s = 0.0
        self._max_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self._total_s += seconds
        self._max_s = max(self._max_s, seconds)

    def snapshot(self) -> Distribution:
        """What is counted so far."""
        return Distribution(_BOUNDS_S, tuple(self._counts), self._total_s, self._max_s)


class _NamespaceMeter:
    """Counts of one namespace."""

    def __init__(self) -> None:
        self.requests = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.generated_tokens = 0

    def snapshot(self) -> NamespaceStatistics:
        return NamespaceStatistics(
            self.requests,
            PrefixCacheStatistics(self.queried_tokens, self.hit_tokens),
            self.generated_tokens,
        )


class Meter:
    """One engine's counters. Told of facts by the core; decides nothing and reads no clock."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.num_steps = 0
        self.prefilled_tokens = 0
        self.generated_tokens = 0
        self.recomputed_tokens = 0
        self.forks = 0
        self.submitted = 0
        self.num_ahead = 0
        self.discarded_rows = 0
        self._ends: dict[Outcome, int] = {"stop": 0, "length": 0, "failed": 0, "aborted": 0}
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._logical_rows = 0
        self._distinct_rows = 0
        self._queue, self._ttft, self._tpot, self._total = (Histogram() for _ in range(4))
        self._step, self._forward = Histogram(), Histogram()
        self._namespaces: OrderedDict[Namespace, _NamespaceMeter] = OrderedDict()

    def planned(self, plan: StepPlan, now_s: float) -> None:
        """A step is about to run: who is new in it, and which rows it reads."""
        chunks = plan.chunks
        for sequence in plan.sequences:
            generation = sequence.generation
            if generation is not None and generation.admitted_at_s is None:
                generation.admitted_at_s = now_s
                self._admitted(sequence.namespace, generation)
        logical = sum(chunk.end for chunk in chunks)
        self._logical_rows += logical
        self._distinct_rows += logical - self._page_size * sum(
            run.num_reread for run in plan.shared
        )

    def computed(self, plan: StepPlan, live: Collection[bool]) -> None:
        """The rows of a plan are computed. live: what `plan.live` says."""
        # A step that nobody waited for any more would not have been without overlap.
        self.num_steps += any(live) or not live
        for chunk, is_live in zip(plan.chunks, live, strict=False):
            generation = chunk.sequence.generation
            if generation is None or not is_live:
                self.discarded_rows += chunk.end - chunk.start
                continue
            num_prompt = max(0, min(chunk.stop, generation.prompt_len) - chunk.start)
            generation.prefilled_tokens += num_prompt
            self.prefilled_tokens += num_prompt
            lost = min(chunk.stop, generation.high_water) - chunk.start
            self.recomputed_tokens += max(0, lost)
            generation.high_water = max(generation.high_water, chunk.stop)

    def sampled(self, namespace: Namespace, num_tokens: int) -> None:
        """Tokens came out."""
        self.generated_tokens += num_tokens
        self._namespace(namespace).generated_tokens += num_tokens

    def timed(self, step_s: float, forward_s: float) -> None:
        """A step is over."""
        self._step.observe(step_s)
        self._forward.observe(forward_s)

    def ended(self, usage: GenerationUsage, outcome: Outcome) -> None:
        """A generation is over."""
        self._ends[outcome] += 1
        if usage.output_tokens > 0:
            self._ttft.observe(usage.ttft_s)
            self._total.observe(usage.total_s)
        if usage.output_tokens > 1:
            self._tpot.observe((usage.total_s - usage.ttft_s) / (usage.output_tokens - 1))

    def requests(self) -> RequestStatistics:
        """A snapshot."""
        ends = self._ends
        return RequestStatistics(
            self.submitted, ends["stop"], ends["length"], ends["failed"], ends["aborted"]
        )

    def prefix_cache(self) -> PrefixCacheStatistics:
        """A snapshot."""
        return PrefixCacheStatistics(self._queried_tokens, self._hit_tokens)

    def reads(self, num_rows_read: int) -> ReadStatistics:
        """A snapshot; what was read is the runner's knowledge."""
        return ReadStatistics(self._logical_rows, self._distinct_rows, num_rows_read)

    def latencies(self) -> LatencyStatistics:
        """A snapshot."""
        histograms = (self._queue, self._ttft, self._tpot, self._total)
        return LatencyStatistics(*(histogram.snapshot() for histogram in histograms))

    def steps(self) -> StepStatistics:
        """A snapshot."""
        return StepStatistics(
            self._step.snapshot(), self._forward.snapshot(), self.num_ahead, self.discarded_rows
        )

    def namespaces(self) -> dict[Namespace, NamespaceStatistics]:
        """A snapshot of the 1,024 namespaces that were used last."""
        return {namespace: meter.snapshot() for namespace, meter in self._namespaces.items()}

    def _admitted(self, namespace: Namespace, generation: Generation) -> None:
        assert generation.admitted_at_s is not None, "it was admitted just now"
        self._queue.observe(generation.admitted_at_s - generation.submitted_at_s)
        hit_tokens = generation.reused_tokens or 0
        self._queried_tokens += generation.prompt_len
        self._hit_tokens += hit_tokens
        of_namespace = self._namespace(namespace)
        of_namespace.requests += 1
        of_namespace.queried_tokens += generation.prompt_len
        of_namespace.hit_tokens += hit_tokens
        self._namespaces.move_to_end(namespace)

    def _namespace(self, namespace: Namespace) -> _NamespaceMeter:
        meter = self._namespaces.get(namespace)
        if meter is None:
            meter = self._namespaces[namespace] = _NamespaceMeter()
            if len(self._namespaces) > _MOST_NAMESPACES:
                self._namespaces.popitem(last=False)
        return meter
