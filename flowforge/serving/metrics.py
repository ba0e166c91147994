"""Metrics for Prometheus: what the engine says of itself, and what the server counts.

Names are vLLM's with a prefix of our own, so that dashboards port; those of forks and of shared
reads have no counterpart there.
"""

from __future__ import annotations

from collections import Counter
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

    from flowforge.engine.statistics import Distribution, EngineStatistics
    from flowforge.serving.pulse import Pulse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "flowforge:"


class ServerCounts:
    """What the server counts. requests: by path and status. Compiling and timeouts: of grammars."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.num_compiling = 0
        self.num_grammar_timeouts = 0
        self.num_gone = 0


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
        statistics = self._statistics()
        yield from self._engine_gauges(statistics)
        yield from self._engine_counters(statistics)
        yield from self._latencies(statistics)
        yield from self._server()

    def _engine_gauges(self, told: EngineStatistics) -> Iterator[Metric]:
        kv = told.kv
        page_size = _page_size(told)
        gauges: list[tuple[str, str, float]] = [
            ("num_requests_running", "Sequences in every step.", told.scheduler.num_running),
            ("num_requests_waiting", "Sequences not admitted.", told.scheduler.num_waiting),
            ("kv_cache_usage_perc", "Share of KV pages held.", kv.pages_held / kv.pages_total),
            ("kv_evictable_tokens", "Cached tokens nobody holds.", kv.pages_cached * page_size),
            ("kv_pages_free", "Free KV pages.", kv.pages_free),
            ("kv_pages_held", "KV pages that sequences hold.", kv.pages_held),
            ("num_grammar_queue_reqs", "Forms in the making.", self._counts.num_compiling),
        ]
        for name, help_text, value in gauges:
            yield self._gauge(name, help_text, value)

    def _engine_counters(self, told: EngineStatistics) -> Iterator[Metric]:
        kv, reads, cache = told.kv, told.reads, told.prefix_cache
        counters: list[tuple[str, str, float]] = [
            ("prefix_cache_queries", "Prompt tokens looked up.", cache.queried_tokens),
            ("prefix_cache_hits", "Prompt tokens found.", cache.hit_tokens),
            ("num_preemptions", "Preemptions.", told.scheduler.num_preemptions),
            ("prompt_tokens", "Prompt tokens.", cache.queried_tokens),
            ("prompt_tokens_cached", "Prompt tokens not computed.", cache.hit_tokens),
            ("generation_tokens", "Tokens written.", told.generated_tokens),
            ("evicted_tokens", "Tokens evicted.", kv.evicted_pages * _page_size(told)),
            ("num_aborted_requests", "Generations given up.", told.requests.aborted),
            ("num_finished_requests", "Generations ended.", _finished(told)),
            ("forks", "Sequences made of others.", told.forks),
            ("fork_copied_tokens", "Rows copied for forks.", kv.copied_tokens),
            ("shared_kv_tokens", "Rows read for others too.", reads.shared_rows),
            ("attention_kv_tokens_read", "KV rows read.", reads.read_rows),
            ("attention_kv_tokens_logical", "KV rows attended to.", reads.logical_rows),
            ("num_grammar_timeout", "Forms given up.", self._counts.num_grammar_timeouts),
        ]
        for name, help_text, value in counters:
            yield self._counter(name, help_text, value)

    def _latencies(self, told: EngineStatistics) -> Iterator[Metric]:
        of = told.latencies
        yield self._histogram("request_queue_time_seconds", "Until admission.", of.queue_s)
        yield self._histogram("time_to_first_token_seconds", "Until the first token.", of.ttft_s)
        yield self._histogram("inter_token_latency_seconds", "Per token behind it.", of.tpot_s)
        yield self._histogram("e2e_request_latency_seconds", "Until the end.", of.total_s)

    def _server(self) -> Iterator[Metric]:
        pulse, counts = self._pulse, self._counts
        yield self._gauge("http_requests_active", "Requests under way.", self._active())
        yield self._gauge("engine_silent_seconds", "Since the engine answered.", pulse.silent_s)
        yield self._gauge("seconds_since_last_token", "Since a token.", pulse.since_token_s)
        yield self._counter("http_clients_gone", "Clients that left early.", counts.num_gone)
        requests = CounterMetricFamily(
            f"{_PREFIX}http_requests", "Requests by path and status.", labels=["path", "status"]
        )
        for (path, status), number in sorted(counts.requests.items()):
            requests.add_metric([path, str(status)], number)
        yield requests

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, help_text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(_PREFIX + name, help_text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _histogram(self, name: str, help_text: str, told: Distribution) -> Metric:
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*told.bounds, float("inf")), told.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", total))
        family = HistogramMetricFamily(_PREFIX + name, help_text, labels=["model_name"])
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
