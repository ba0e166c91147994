"""What an engine says about itself, in the field's terms. Frozen: a snapshot does not change.

Counters only rise, from the engine's start. To see a rate over a while, take two snapshots and ask
the later one for `since(earlier)`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.kv.kv_statistics import KvStatistics
    from flowforge.engine.mask_filling import MaskStatistics


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds that something took, counted in buckets of fixed bounds.

    bounds: upper ends, rising; counts has one more, for what is above the last. Memory is constant,
    so a quantile is exact to its bucket.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_s: float
    max_s: float

    @property
    def count(self) -> int:
        """How often it happened."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float:
        """The mean; 0 when it never happened."""
        return self.total_s / self.count if self.count else 0.0

    def quantile_s(self, share: float) -> float:
        """The time that `share` of all stay at or below, taken evenly inside a bucket.

        share: 0.5 is the median. 0 when it never happened. Raises ValueError outside 0 to 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be from 0 to 1, got {share}")
        if not self.count:
            return 0.0
        rank = share * self.count
        below = list(accumulate(self.counts, initial=0))
        bucket = max(0, bisect_left(below, rank) - 1)
        start = self.bounds[bucket - 1] if bucket > 0 else 0.0
        end = min(self.bounds[bucket], self.max_s) if bucket < len(self.bounds) else self.max_s
        inside = (rank - below[bucket]) / self.counts[bucket] if self.counts[bucket] else 0.0
        return start + (end - start) * inside

    def since(self, earlier: Distribution) -> Distribution:
        """What was added after an earlier snapshot; `max_s` stays that of the whole time."""
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Distribution(self.bounds, counts, self.total_s - earlier.total_s, self.max_s)


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """Generations by how they ended; those under way are `submitted` minus the rest.

    A fork counts when it generates itself. prefills and scorings count as generations.
    """

    submitted: int = 0
    stopped: int = 0
    length_limited: int = 0
    failed: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class PrefixCacheStatistics:
    """queried_tokens: prompt tokens of admitted generations. hit_tokens: those found in the cache.

    A preempted generation counts at its first admission only.
    """

    queried_tokens: int = 0
    hit_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were not computed, from 0 to 1."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """KV rows (tokens, in one layer) that steps attended to.

    logical_rows: each branch of a step counts its whole context. distinct_rows: a row that several
    branches of a step share counts once; no attention can read fewer. read_rows: as often as they
    were read, from the pages or from the step's own tokens. Windows are not counted.
    """

    logical_rows: int = 0
    distinct_rows: int = 0
    read_rows: int = 0

    @property
    def shared_rows(self) -> int:
        """Rows that a step reads again for a branch although another has the same."""
        return self.logical_rows - self.distinct_rows

    @property
    def ratio(self) -> float:
        """Logical over distinct: the most that reading shared pages once can gain."""
        return self.logical_rows / self.distinct_rows if self.distinct_rows else 1.0

    @property
    def amplification(self) -> float:
        """Read over distinct: 1 when every row is read once a step."""
        return self.read_rows / self.distinct_rows if self.distinct_rows else 1.0


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Sequences by their state. num_preemptions, num_deferrals: since the start."""

    num_running: int
    num_waiting: int
    num_idle: int
    num_preemptions: int
    num_deferrals: int


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """Of generations that sampled something, in seconds by the engine's monotonic clock.

    queue_s: from submission to the first admission. ttft_s: from submission to the first token.
    tpot_s: time per output token behind the first, one value a generation. total_s: to the end.
    """

    queue_s: Distribution
    ttft_s: Distribution
    tpot_s: Distribution
    total_s: Distribution


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """step_s: whole steps. forward_s: their forward passes, copies of rows included.

    With overlap forward_s is what is waited for of them. num_ahead: steps that were launched before
    the last one was read. discarded_rows: that were computed for texts which had come to their end.
    """

    step_s: Distribution
    forward_s: Distribution
    num_ahead: int = 0
    discarded_rows: int = 0

    @property
    def host_s(self) -> float:
        """Time of all steps outside the forward pass: planning, sampling, bookkeeping."""
        return self.step_s.total_s - self.forward_s.total_s


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Bytes that the engine holds from start to end. kv_bytes: all pages, used or not."""

    weight_bytes: int = 0
    kv_bytes: int = 0
    kv_bytes_per_token: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """Tokens that were guessed and tried, and those of them that were then said."""

    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Of the guesses, those that were right; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True)
class KernelStatistics:
    """How products with matrices of one shape are computed.

    kind: how the weights are stored. most_rows: products of up to so many rows are computed by the
    engine's own kernels, others by torch; 2**30 for all.
    """

    kind: str
    num_rows_out: int
    num_columns_in: int
    most_rows: int


@dataclass(frozen=True, slots=True)
class ComputeStatistics:
    """What the engine computes with, from start to end.

    dtype: of activations. kernels: what was chosen where there was a choice. device: as torch names
    it. kv_dtype: what KV rows are kept in. num_ranks: processes that the model is split over.
    is_deterministic: results have the same bits whatever else is in a step, was cached, forked or
    evicted, asked for or not; tried when the engine started.
    """

    dtype: str = "float32"
    num_threads: int = 1
    kernels: tuple[KernelStatistics, ...] = ()
    device: str = "cpu"
    num_ranks: int = 1
    is_deterministic: bool = False
    kv_dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class NamespaceStatistics:
    """What one namespace's generations asked for. Tokens; `requests` when they were admitted."""

    requests: int
    prefix_cache: PrefixCacheStatistics
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Everything; see the parts. Tokens are counted, of all sequences, children of forks too.

    prefilled_tokens: prompt tokens computed. generated_tokens: sampled and forced ones.
    recomputed_tokens: computed before, and again after a preemption. forks: sequences made of
    others. uptime_s: since the engine was made.
    """

    kv: KvStatistics
    scheduler: SchedulerStatistics
    masks: MaskStatistics
    requests: RequestStatistics
    prefix_cache: PrefixCacheStatistics
    reads: ReadStatistics
    latencies: LatencyStatistics
    steps: StepStatistics
    memory: MemoryStatistics
    compute: ComputeStatistics
    speculation: SpeculationStatistics
    num_steps: int
    prefilled_tokens: int
    generated_tokens: int
    recomputed_tokens: int
    forks: int
    uptime_s: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second of work: of steps, not of idle time."""
        busy_s = self.steps.step_s.total_s
        return self.generated_tokens / busy_s if busy_s else 0.0

    def since(self, earlier: EngineStatistics) -> StatisticsInterval:
        """What happened between an earlier snapshot of the same engine and this one."""
        return StatisticsInterval(
            seconds=self.uptime_s - earlier.uptime_s,
            prefilled_tokens=self.prefilled_tokens - earlier.prefilled_tokens,
            generated_tokens=self.generated_tokens - earlier.generated_tokens,
            prefix_cache=PrefixCacheStatistics(
                *_differences(self.prefix_cache, earlier.prefix_cache)
            ),
            reads=ReadStatistics(*_differences(self.reads, earlier.reads)),
            ttft_s=self.latencies.ttft_s.since(earlier.latencies.ttft_s),
            tpot_s=self.latencies.tpot_s.since(earlier.latencies.tpot_s),
        )


@dataclass(frozen=True, slots=True)
class StatisticsInterval:
    """Counters of a while; `seconds` of wall time, idle or not."""

    seconds: float
    prefilled_tokens: int
    generated_tokens: int
    prefix_cache: PrefixCacheStatistics
    reads: ReadStatistics
    ttft_s: Distribution
    tpot_s: Distribution

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second."""
        return self.generated_tokens / self.seconds if self.seconds else 0.0


def _differences(
    later: PrefixCacheStatistics | ReadStatistics, earlier: PrefixCacheStatistics | ReadStatistics
) -> Sequence[int]:
    names = [field.name for field in fields(later)]
    return [getattr(later, name) - getattr(earlier, name) for name in names]
