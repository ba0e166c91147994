"""How many KV pages fit beside the weights: decided from numbers, and refused with numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.config import EngineConfig

# Left to activations, logits and the rest of the process, whatever is asked for.
MARGIN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """What the pool takes of a memory where nobody says how much.

    margin_bytes: stay free, whatever is asked for. share_of_free: of what weights and margin leave,
    the pool takes one part in so many, but no more than most_kv_bytes.
    """

    margin_bytes: int
    share_of_free: int
    most_kv_bytes: int | None


HOST_RULE = MemoryRule(MARGIN_BYTES, share_of_free=4, most_kv_bytes=2 << 30)
"""Of a machine whose memory others use, too."""


def plan_pages(
    config: EngineConfig,
    *,
    context_len: int,
    page_bytes: int,
    weight_bytes: int,
    available_bytes: int,
    rule: MemoryRule = HOST_RULE,
) -> int:
    """How many pages the pool gets.

    context_len: tokens of one sequence that the model is loaded for. weight_bytes: what the weights
    take in memory. available_bytes: what may be used for weights and pages together, before either
    is there; the rule's margin of it stays free.
    Raises EngineError EN232 when weights or pages do not fit, EN231 when the pool holds no page,
    EN233 when it is smaller than the one context that `config.context_len` asks for.
    """
    for_kv = available_bytes - rule.margin_bytes - weight_bytes
    if for_kv < page_bytes:
        raise EngineError(
            "EN232",
            f"the weights take {in_bytes(weight_bytes)} and one KV page {in_bytes(page_bytes)}; "
            f"of {in_bytes(available_bytes)} free memory {in_bytes(rule.margin_bytes)} stay free "
            "for computing",
            help="take a smaller model, or end other programs",
        )
    context_pages = -(-context_len // config.page_size)
    num_pages = _num_wanted(config, context_pages, page_bytes, for_kv, rule)
    if num_pages * page_bytes > for_kv:
        most = for_kv // page_bytes
        option = "num_pages" if config.num_pages is not None else "kv_bytes"
        value = most if config.num_pages is not None else most * page_bytes
        raise EngineError(
            "EN232",
            f"{num_pages} KV pages of {in_bytes(page_bytes)} take "
            f"{in_bytes(num_pages * page_bytes)}, and {in_bytes(for_kv)} are free beside weights "
            f"of {in_bytes(weight_bytes)}",
            help=f"what fits: {most} pages, which hold {most * config.page_size} tokens; set "
            f"{option} to at most {value}",
        )
    if config.context_len is not None and num_pages < context_pages:
        raise EngineError(
            "EN233",
            f"a context of {context_len} tokens takes {context_pages} KV pages, "
            f"{in_bytes(context_pages * page_bytes)}, and the pool has {num_pages}",
            help=_help_for_context(config, num_pages, context_pages, page_bytes, for_kv),
        )
    return num_pages


def plan_host_slots(config: EngineConfig, page_bytes: int, free_bytes: int) -> int:
    """How many pages `config.host_cache_bytes` hold beside what else is in the machine's memory.

    page_bytes: of one page, of all ranks together. Raises EngineError EN231 when they hold none,
    EN232 when they do not fit.
    """
    wanted = config.host_cache_bytes
    if wanted == 0:
        return 0
    if wanted < page_bytes:
        raise EngineError(
            "EN231",
            f"host_cache_bytes of {wanted} hold no KV page of {page_bytes} bytes",
            help="give more, or 0 for no cache in the machine's memory",
        )
    most = free_bytes - HOST_RULE.margin_bytes
    if wanted > most:
        raise EngineError(
            "EN232",
            f"host_cache_bytes are {in_bytes(wanted)}, and {in_bytes(max(0, most))} of the "
            "machine's memory are free beside the rest",
            help=f"set host_cache_bytes to at most {max(0, most)}",
        )
    return wanted // page_bytes


def free_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that this process may still take, caches of files counted as free.

    The least of what the machine and the control group of a container have left; half of the
    machine's memory where neither says.
    """
    found = [left for left in (_left_of_machine(meminfo), _left_of_group(cgroup)) if left]
    if found:
        return min(found)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def in_bytes(count: int) -> str:
    """A size for people, in decimal units."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def _num_wanted(
    config: EngineConfig, context_pages: int, page_bytes: int, for_kv: int, rule: MemoryRule
) -> int:
    if config.num_pages is not None:
        return config.num_pages
    most = context_pages * config.max_running
    if config.kv_bytes is not None:
        if config.kv_bytes < page_bytes:
            raise EngineError(
                "EN231",
                f"kv_bytes of {config.kv_bytes} hold no KV page of {page_bytes} bytes",
                help="give kv_bytes more, make page_size smaller or take a smaller model",
            )
        return min(config.kv_bytes // page_bytes, most)
    by_default = for_kv // rule.share_of_free
    if rule.most_kv_bytes is not None:
        by_default = min(by_default, rule.most_kv_bytes)
    by_default //= page_bytes
    if config.context_len is not None and context_pages * page_bytes <= for_kv:
        by_default = max(by_default, context_pages)
    return max(1, min(by_default, most))


def _help_for_context(
    config: EngineConfig, num_pages: int, context_pages: int, page_bytes: int, for_kv: int
) -> str:
    shorter = f"set context_len to at most {num_pages * config.page_size}"
    if context_pages * page_bytes > for_kv:
        return f"{shorter}: {in_bytes(for_kv)} are free for pages"
    if config.num_pages is not None:
        return f"{shorter}, or num_pages to at least {context_pages}"
    return f"{shorter}, or kv_bytes to at least {context_pages * page_bytes}"


def _left_of_machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_of_group(cgroup: Path) -> int | None:
    """What a control group (version 2) has left; None without a limit."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    if limit == "max":
        return None
    # Cached files give way before the group runs out.
    reclaimable = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(1, int(limit) - used + reclaimable)
