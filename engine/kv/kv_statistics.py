"""What a KV cache says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowforge.engine.kv.host_tier import HostStatistics


@dataclass(frozen=True, slots=True)
class KvStatistics:
    """Pages: free + cached + held = total. held: private, or in the tree with a live path.

    num_namespaces: those with a page, a path or an expectation.
    Counters since the start: tokens found in the tree, rows copied by partial matches, pages
    evicted.
    """

    pages_total: int
    pages_free: int
    pages_cached: int
    pages_held: int
    pages_peak_held: int
    num_namespaces: int
    reused_tokens: int
    copied_tokens: int
    evicted_pages: int
    host: HostStatistics = field(default_factory=HostStatistics)
