"""Metrics for Prometheus: what the engine says of itself, and what the server counts.

Names are vLLM's with a prefix of our own, so that dashboards port; those of forks and of shared
reads have no counterpart there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from flowforge.engine.statistics import Distribution, EngineStatistics, LatencyStatistics
    from flowforge.serving.pulse import Pulse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PREFIX = "flowforge:"


class ServerCounts:
    """What the server counts. requests: by path and status. Compiling and timeouts: of grammars."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.num_compiling = 0
        self.num_grammar_timeouts = 0
        self.num_gone = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that metrics are read from. active: requests under way."""

    engine: EngineStatistics
    counts: ServerCounts
    pulse: Pulse
    active: int


@dataclass(frozen=True, slots=True)
class Measure:
    """One number. help: what it is, with its unit. read: its value in a snapshot."""

    name: str
    help: str
    read: Callable[[Snapshot], float]


@dataclass(frozen=True, slots=True)
class Latency:
    """One histogram of seconds. help: from when to when. read: its buckets."""

    name: str
    help: str
    read: Callable[[LatencyStatistics], Distribution]


GAUGES = (
    Measure(
        "num_requests_running",
        "Sequences that take part in every step.",
        lambda now: now.engine.scheduler.num_running,
    ),
    Measure(
        "num_requests_waiting",
        "Sequences that are not admitted yet.",
        lambda now: now.engine.scheduler.num_waiting,
    ),
    Measure(
        "kv_cache_usage_perc",
        "Share of KV pages that sequences hold, from 0 to 1.",
        lambda now: now.engine.kv.pages_held / now.engine.kv.pages_total,
    ),
    Measure(
        "kv_evictable_tokens",
        "Tokens whose KV is cached and held by nobody.",
        lambda now: now.engine.kv.pages_cached * _page_size(now.engine),
    ),
    Measure("kv_pages_free", "KV pages that hold nothing.", lambda now: now.engine.kv.pages_free),
    Measure("kv_pages_held", "KV pages that sequences hold.", lambda now: now.engine.kv.pages_held),
    Measure(
        "num_grammar_queue_reqs",
        "Requests whose form is being compiled.",
        lambda now: now.counts.num_compiling,
    ),
    Measure(
        "http_requests_active",
        "HTTP requests under way, streams included.",
        lambda now: now.active,
    ),
    Measure(
        "engine_silent_seconds",
        "Seconds since the engine last answered the server.",
        lambda now: now.pulse.silent_s,
    ),
    Measure(
        "seconds_since_last_token",
        "Seconds since a token was last known to be written, or since the server's start.",
        lambda now: now.pulse.since_token_s,
    ),
)
COUNTERS = (
    Measure(
        "prefix_cache_queries",
        "Prompt tokens of admitted generations, which the prefix cache was asked for.",
        lambda now: now.engine.prefix_cache.queried_tokens,
    ),
    Measure(
        "prefix_cache_hits",
        "Those of them that it had.",
        lambda now: now.engine.prefix_cache.hit_tokens,
    ),
    Measure(
        "num_preemptions",
        "Times that a running sequence had to give its KV pages up.",
        lambda now: now.engine.scheduler.num_preemptions,
    ),
    Measure(
        "prompt_tokens",
        "Prompt tokens of admitted generations, computed or not.",
        lambda now: now.engine.prefix_cache.queried_tokens,
    ),
    Measure(
        "prompt_tokens_cached",
        "Those of them that were not computed.",
        lambda now: now.engine.prefix_cache.hit_tokens,
    ),
    Measure(
        "generation_tokens",
        "Tokens written: sampled, or forced by a form.",
        lambda now: now.engine.generated_tokens,
    ),
    Measure(
        "evicted_tokens",
        "Tokens whose cached KV was given up to make room.",
        lambda now: now.engine.kv.evicted_pages * _page_size(now.engine),
    ),
    Measure(
        "num_aborted_requests",
        "Generations that were given up before their end.",
        lambda now: now.engine.requests.aborted,
    ),
    Measure(
        "num_finished_requests",
        "Generations that came to their end.",
        lambda now: _finished(now.engine),
    ),
    Measure("forks", "Sequences made of others.", lambda now: now.engine.forks),
    Measure(
        "fork_copied_tokens",
        "Tokens whose KV rows were copied for forks.",
        lambda now: now.engine.kv.copied_tokens,
    ),
    Measure(
        "shared_kv_tokens",
        "KV rows that a step reads for one sequence although another of it has the same.",
        lambda now: now.engine.reads.shared_rows,
    ),
    Measure(
        "attention_kv_tokens_read",
        "KV rows that attention read, in one layer.",
        lambda now: now.engine.reads.read_rows,
    ),
    Measure(
        "attention_kv_tokens_logical",
        "KV rows that sequences attended to, in one layer: each counts its whole context.",
        lambda now: now.engine.reads.logical_rows,
    ),
    Measure(
        "constraint_masks",
        "Token masks of forms that were filled beside the forward pass.",
        lambda now: now.engine.masks.num_masks,
    ),
    Measure(
        "constraint_mask_seconds",
        "Seconds that filling them took.",
        lambda now: now.engine.masks.fill_s,
    ),
    Measure(
        "constraint_mask_wait_seconds",
        "Those of them that a step waited for.",
        lambda now: now.engine.masks.wait_s,
    ),
    Measure(
        "num_grammar_timeout",
        "Forms whose compiling took too long.",
        lambda now: now.counts.num_grammar_timeouts,
    ),
    Measure(
        "http_clients_gone",
        "Clients that left before their answer.",
        lambda now: now.counts.num_gone,
    ),
)
LATENCIES = (
    Latency(
        "request_queue_time_seconds",
        "From a generation's request to its admission.",
        lambda of: of.queue_s,
    ),
    Latency(
        "time_to_first_token_seconds",
        "From a generation's request to its first token.",
        lambda of: of.ttft_s,
    ),
    Latency(
        "inter_token_latency_seconds",
        "Per token behind the first: the mean of each generation.",
        lambda of: of.tpot_s,
    ),
    Latency(
        "e2e_request_latency_seconds",
        "From a generation's request to its end.",
        lambda of: of.total_s,
    ),
)
REQUESTS = ("http_requests", "HTTP requests by path and status.", ("path", "status"))
"""A counter with labels of its own; those of all others are `model_name` alone."""


class Metrics(Collector):
    """Tells them all. active: requests under way."""

    def __init__(
        self,
        model: str,
        statistics: Callable[[], EngineStatistics],
        counts: ServerCounts,
        pulse: Pulse,
        active: Callable[[], int],
    ) -> None:
        self._model = model
        self._statistics = statistics
        self._counts = counts
        self._pulse = pulse
        self._active = active
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the engine may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See Prometheus."""
        now = Snapshot(self._statistics(), self._counts, self._pulse, self._active())
        for one in GAUGES:
            gauge = GaugeMetricFamily(PREFIX + one.name, one.help, labels=["model_name"])
            gauge.add_metric([self._model], one.read(now))
            yield gauge
        for one in COUNTERS:
            counter = CounterMetricFamily(PREFIX + one.name, one.help, labels=["model_name"])
            counter.add_metric([self._model], one.read(now))
            yield counter
        for latency in LATENCIES:
            yield self._histogram(latency, now.engine)
        name, help_text, labels = REQUESTS
        requests = CounterMetricFamily(PREFIX + name, help_text, labels=labels)
        for (path, status), number in sorted(self._counts.requests.items()):
            requests.add_metric([path, str(status)], number)
        yield requests

    def _histogram(self, latency: Latency, engine: EngineStatistics) -> Metric:
        told = latency.read(engine.latencies)
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*told.bounds, float("inf")), told.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", total))
        family = HistogramMetricFamily(PREFIX + latency.name, latency.help, labels=["model_name"])
        family.add_metric([self._model], buckets, told.total_s)
        return family


def _page_size(told: EngineStatistics) -> float:
    """Tokens of a page, from bytes: statistics do not name it."""
    memory = told.memory
    if not memory.kv_bytes_per_token:
        return 0
    return memory.kv_bytes / memory.kv_bytes_per_token / told.kv.pages_total


def _finished(told: EngineStatistics) -> int:
    return told.requests.stopped + told.requests.length_limited
