"""From a model directory to an engine: weights, KV pages, limits."""

from __future__ import annotations

import gc
import os
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore, ModelLimits
from flowforge.engine.engine import Engine
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.canary import PageCanary
from flowforge.engine.models.config import ModelConfig, read_model_config
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import torch

_MOST_KV_BYTES_BY_DEFAULT = 2 << 30
_SHARE_OF_FREE_MEMORY = 4


def engine_for(directory: Path, *, vocab_size: int, config: EngineConfig | None = None) -> Engine:
    """An engine, not started, for the model in a directory.

    vocab_size: ids that the tokenizer knows; the model's rows above them are never sampled. The
    weights are read when the engine starts, on its thread, and freed when it is closed.
    Raises EngineError at start for a model that cannot be loaded or that does not fit.
    """
    settings = config or EngineConfig()
    return Engine(lambda: _make_core(directory, vocab_size, settings))


def _make_core(directory: Path, vocab_size: int, config: EngineConfig) -> EngineCore:
    # Threads that spin at the end of every operation make a step ten times as long as soon as
    # another process wants a core. OpenMP reads this once, when torch brings it in.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch costs seconds to import: nobody pays who only checks a file.
    with _paused_collection():
        import torch

        from flowforge.engine.kv.store import KvStore
        from flowforge.engine.models.weights import load_decoder
        from flowforge.engine.runner import ModelRunner

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(_num_usable_cores())
    model = read_model_config(directory, config.context_len)
    decoder = load_decoder(directory, model)
    num_pages = _num_pages(config, model, decoder.dtype)
    store = KvStore(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        num_pages=num_pages,
        page_size=config.page_size,
        dtype=decoder.dtype,
        device=decoder.device,
    )
    canary = PageCanary(store.poison) if config.is_debug else None
    kv = KvCache(num_pages, config.page_size, canary.note if canary is not None else None)
    fill = partial(canary.fill, kv.is_free) if canary is not None else None
    return EngineCore(
        ModelRunner(decoder, store, after_copies=fill),
        kv,
        SchedulerLimits(config.max_step_tokens, config.max_running),
        ModelLimits(
            vocab_size=min(vocab_size, model.vocab_size),
            max_context_len=model.max_context_len,
            eos_token_ids=frozenset(model.eos_token_ids),
        ),
        clock=time.monotonic,
    )


@contextmanager
def _paused_collection() -> Generator[None]:
    """Without the cyclic garbage collector: torch's import makes objects and no garbage.

    It walks them again and again otherwise, a sixth of the import's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _num_pages(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    from flowforge.engine.kv.store import bytes_per_token

    if config.num_pages is not None:
        return config.num_pages
    page_bytes = config.page_size * bytes_per_token(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )
    most = -(-model.max_context_len // config.page_size) * config.max_running
    free = _free_memory()
    budget = config.kv_bytes or min(free // _SHARE_OF_FREE_MEMORY, _MOST_KV_BYTES_BY_DEFAULT)
    if budget < page_bytes:
        raise EngineError(
            "EN231",
            f"{budget} bytes hold no KV page of {page_bytes} bytes",
            help="give kv_bytes more, make page_size smaller or take a smaller model",
        )
    return min(budget // page_bytes, most)


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _num_usable_cores() -> int:
    # The affinity mask and not cpu_count: in a container the machine has cores that are not ours.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
