"""How many KV pages fit beside the weights: decided from numbers, and refused with numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.config import EngineConfig

# Left to activations, logits and the rest of the process, whatever is asked for.
MARGIN_BYTES = 256 << 20
_MOST_KV_BYTES_BY_DEFAULT = 2 << 30
_SHARE_OF_FREE_MEMORY = 4


def plan_pages(
    config: EngineConfig,
    *,
    context_len: int,
    page_bytes: int,
    weight_bytes: int,
    available_bytes: int,
) -> int:
    """How many pages the pool gets.

    context_len: tokens of one sequence that the model is loaded for. weight_bytes: what the weights
    take in memory. available_bytes: what may be used for weights and pages together, before either
    is there; `MARGIN_BYTES` of it stay free.
    Raises EngineError EN232 when weights or pages do not fit, EN231 when the pool holds no page,
    EN233 when it is smaller than the one context that `config.context_len` asks for.
    """
    for_kv = available_bytes - MARGIN_BYTES - weight_bytes
    if for_kv < page_bytes:
        raise EngineError(
            "EN232",
            f"the weights take {in_bytes(weight_bytes)} and one KV page {in_bytes(page_bytes)}; "
            f"of {in_bytes(available_bytes)} free memory {in_bytes(MARGIN_BYTES)} stay free for "
            "computing",
            help="take a smaller model, or end other programs",
        )
    context_pages = -(-context_len // config.page_size)
    num_pages = _num_wanted(config, context_pages, page_bytes, for_kv)
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


def _num_wanted(config: EngineConfig, context_pages: int, page_bytes: int, for_kv: int) -> int:
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
    by_default = min(for_kv // _SHARE_OF_FREE_MEMORY, _MOST_KV_BYTES_BY_DEFAULT) // page_bytes
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
