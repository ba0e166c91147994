"""From a model directory to an engine: weights, KV pages, limits."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.collector import resting_collector
from flowforge.engine.arguments import require, require_integer
from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore
from flowforge.engine.cores import num_usable_cores
from flowforge.engine.devices import CudaFinding, choose_device, find_cuda_devices
from flowforge.engine.engine import Engine
from flowforge.engine.kv.audit import KvAudit
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.memory import in_bytes, plan_pages
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.models.config import read_model_config
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.statistics import ComputeStatistics, KernelStatistics, MemoryStatistics
from flowforge.engine.step_errors import says_out_of_memory
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator

    from flowforge.engine.models.decoder import Decoder


def engine_for(
    directory: Path | str, *, vocab_size: int, config: EngineConfig | None = None
) -> Engine:
    """An engine, not started, for the model in a directory.

    vocab_size: ids that the tokenizer knows; the model's rows above them are never sampled. The
    weights are read when the engine starts, on its thread, and freed when it is closed.
    Raises EngineError EN230 for a vocabulary without ids, and at start for a model that cannot be
    loaded or that does not fit.
    """
    require_integer("vocab_size", vocab_size, "EN230")
    require(vocab_size >= 1, "vocab_size", "at least 1", vocab_size, "EN230")
    settings = config or EngineConfig()
    threads = _TorchThreads(settings.num_threads)
    model_dir = Path(directory)
    return Engine(lambda: _make_core(model_dir, vocab_size, settings, threads), threads.restore)


def load_core(
    directory: Path | str, *, vocab_size: int, config: EngineConfig | None = None
) -> EngineCore:
    """The core that `engine_for`'s engine would have, for whoever steps it on this thread.

    Torch's threads stay as they are set. Raises as an engine does at its start.
    """
    return _make_core(Path(directory), vocab_size, config or EngineConfig(), _TorchThreads(None))


class _TorchThreads:
    """How many threads torch computes with while engines run: a setting of the whole process.

    Engines may overlap and end in any order: the last one to end puts back what the first found.
    """

    _lock = threading.Lock()
    _num_set = 0
    _before = 0

    def __init__(self, wanted: int | None) -> None:
        self._wanted = wanted
        self._is_set = False

    def set(self) -> None:
        import torch

        wanted = self._wanted
        if wanted is None and "OMP_NUM_THREADS" not in os.environ:
            wanted = num_usable_cores()
        if wanted is None:
            return
        with _TorchThreads._lock:
            if _TorchThreads._num_set == 0:
                _TorchThreads._before = torch.get_num_threads()
            _TorchThreads._num_set += 1
            self._is_set = True
            torch.set_num_threads(wanted)

    def restore(self) -> None:
        if not self._is_set:
            return
        import torch

        with _TorchThreads._lock:
            self._is_set = False
            _TorchThreads._num_set -= 1
            if _TorchThreads._num_set == 0:
                torch.set_num_threads(_TorchThreads._before)


def _make_core(
    directory: Path, vocab_size: int, config: EngineConfig, threads: _TorchThreads
) -> EngineCore:
    # torch costs seconds to import: nobody pays who only checks a file. The collector would take a
    # sixth of that.
    with resting_collector(), _passive_waiting():
        from flowforge.engine.attention.backends import choose_backend
        from flowforge.engine.attention.compiled import can_compute, find_attention_library
        from flowforge.engine.forward import ForwardPass
        from flowforge.engine.kv.store import KvStore, bytes_per_token
        from flowforge.engine.models.weights import load_decoder, weight_size
        from flowforge.engine.prefix_rows import PrefixRows
        from flowforge.engine.runner import ModelRunner

    threads.set()
    model = read_model_config(directory, config.context_len)
    place = choose_device(config.device, _cuda_devices(config.device))
    weights = weight_size(
        directory, config.dtype, is_deterministic=config.is_deterministic, device=place
    )
    shape = {
        "num_layers": model.num_layers,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
    }
    row_bytes = bytes_per_token(**shape, dtype=weights.dtype)
    num_pages = plan_pages(
        config,
        context_len=model.max_context_len,
        page_bytes=config.page_size * row_bytes,
        weight_bytes=weights.num_bytes,
        available_bytes=place.available_bytes,
        rule=place.rule,
    )
    kv_bytes = num_pages * config.page_size * row_bytes
    with _out_of_memory_said(weights.num_bytes, kv_bytes, place.available_bytes):
        decoder = load_decoder(
            directory, model, dtype=weights.dtype, device=place.name, kernels=weights.kernels
        )
        store = KvStore(
            **shape,
            num_pages=num_pages,
            page_size=config.page_size,
            dtype=weights.dtype,
            device=decoder.device,
        )
    audit = KvAudit(num_pages, config.page_size, store.poison) if config.is_debug else None
    kv = KvCache(num_pages, config.page_size, audit.note_freed if audit is not None else None)
    kernel = None if weights.kernels == "never" else find_attention_library()
    if config.is_deterministic and (kernel is None or not can_compute(store.rows)):
        raise EngineError(
            "EN234",
            f"heads of {model.head_dim} numbers cannot be attended to deterministically",
            help="leave is_deterministic out",
        )
    attention = choose_backend(store, config.shared_attention, kernel)
    return EngineCore(
        ModelRunner(ForwardPass(decoder, store, attention), audit, kv.is_free),
        kv,
        SchedulerLimits(config.max_step_tokens, config.max_running),
        ModelLimits(
            vocab_size=min(vocab_size, model.vocab_size),
            max_context_len=model.max_context_len,
            eos_token_ids=frozenset(model.eos_token_ids),
        ),
        clock=time.monotonic,
        memory=MemoryStatistics(weights.num_bytes, kv_bytes, row_bytes),
        compute=_compute_statistics(decoder),
        prefix_rows=PrefixRows(kv, store, audit),
        policy=config.policy,
    )


def _cuda_devices(asked: str) -> CudaFinding:
    """What the machine has; nobody looks where the CPU is asked for."""
    return CudaFinding(()) if asked == "cpu" else find_cuda_devices()


def _compute_statistics(decoder: Decoder) -> ComputeStatistics:
    import torch

    kernels = (
        KernelStatistics(
            choice.shape.kind,
            choice.shape.num_rows_out,
            choice.shape.num_columns_in,
            choice.most_rows,
        )
        for choice in decoder.kernel_choices
    )
    dtype = str(decoder.dtype).removeprefix("torch.")
    device = str(decoder.device)
    return ComputeStatistics(dtype, torch.get_num_threads(), tuple(kernels), device)


@contextmanager
def _passive_waiting() -> Generator[None]:
    """Bring torch in with OpenMP threads that sleep while they wait.

    Threads that spin at the end of every operation make a step ten times as long as soon as another
    process wants a core. OpenMP reads this once, and other programs started from here shall not.
    """
    name = "OMP_WAIT_POLICY"
    if name in os.environ:
        yield
        return
    os.environ[name] = "PASSIVE"
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def _out_of_memory_said(weights: int, kv_bytes: int, available: int) -> Generator[None]:
    """An allocation that fails although it was planned: others took the memory meanwhile."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not says_out_of_memory(error):
            raise
        raise EngineError(
            "EN232",
            f"out of memory while loading weights of {in_bytes(weights)} and a KV pool of "
            f"{in_bytes(kv_bytes)}; {in_bytes(available)} were free before",
            help="give kv_bytes less, take a smaller model or end other programs",
        ) from error
