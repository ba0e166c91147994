"""From a model directory to an engine: weights, KV pages, limits."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge import environment
from flowforge.collector import resting_collector
from flowforge.engine.arguments import require, require_integer
from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore
from flowforge.engine.cores import num_usable_cores
from flowforge.engine.engine import Engine
from flowforge.engine.kv.audit import KvAudit
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.host_tier import HostTier
from flowforge.engine.memory import in_bytes
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.speculation.model_drafter import ModelDrafter
from flowforge.engine.speculation.same_tokens import draft_directory
from flowforge.engine.speculation.speculator import Speculator
from flowforge.engine.statistics import ComputeStatistics, KernelStatistics, MemoryStatistics
from flowforge.engine.step_errors import says_out_of_memory
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator

    from flowforge.engine.computing import ComputePlan, Computing

# KV of a model that only guesses.
_DRAFT_BYTES = 256 << 20


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
    threads = _TorchThreads(_num_threads(settings))
    model_dir = Path(directory)
    # What the core took beside memory is given back after the core is gone, in reverse.
    end = ExitStack()
    end.callback(threads.restore)
    return Engine(lambda: _make_core(model_dir, vocab_size, settings, threads, end), end.close)


def load_core(
    directory: Path | str, *, vocab_size: int, config: EngineConfig | None = None
) -> EngineCore:
    """The core that `engine_for`'s engine would have, for whoever steps it on this thread.

    Torch's threads stay as they are set. Raises as an engine does at its start, and EN230 for a
    model that is to be split: a core has no end at which its processes could end.
    """
    settings = config or EngineConfig()
    require(settings.tp == 1, "tp of a core without an engine", "1", settings.tp, "EN230")
    return _make_core(Path(directory), vocab_size, settings, _TorchThreads(None), ExitStack())


def _num_threads(config: EngineConfig) -> int | None:
    """Of torch in this process: the cores are shared by all ranks."""
    if config.num_threads is None and (config.tp == 1 or environment.THREADS.is_set):
        return None
    return max(1, (config.num_threads or num_usable_cores()) // config.tp)


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
        if wanted is None and not environment.THREADS.is_set:
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
    directory: Path, vocab_size: int, config: EngineConfig, threads: _TorchThreads, end: ExitStack
) -> EngineCore:
    draft = config.draft_model
    small = None if draft is None else draft_directory(directory, draft)
    # torch costs seconds to import: nobody pays who only checks a file. The collector would take a
    # sixth of that.
    with resting_collector(), _passive_waiting():
        from flowforge.engine.computing import load_parts, load_whole, plan_compute
        from flowforge.engine.prefix_rows import PrefixRows
        from flowforge.engine.runner import ModelRunner

    threads.set()
    # Before the memory that is left is looked at.
    speculator = _speculator(small, vocab_size, config)
    plan = plan_compute(directory, config)
    with _out_of_memory_said(plan):
        made = load_whole(plan, config) if config.tp == 1 else load_parts(plan, config, end)
    model, rows, store = plan.model, plan.rows, made.store
    audit = KvAudit(rows.num_pages, rows.page_size, store.poison) if config.is_debug else None
    kv = KvCache(
        rows.num_pages,
        rows.page_size,
        None if audit is None else audit.note_freed,
        HostTier(rows.num_host_slots) if rows.num_host_slots > 0 else None,
    )
    num_ids = min(vocab_size, model.vocab_size)
    return EngineCore(
        ModelRunner(made.forward, audit, kv.is_free, made.drawn, num_ids),
        kv,
        SchedulerLimits(config.max_step_tokens, config.max_running),
        ModelLimits(
            vocab_size=num_ids,
            max_context_len=model.max_context_len,
            eos_token_ids=frozenset(model.eos_token_ids),
        ),
        clock=time.monotonic,
        memory=MemoryStatistics(plan.weights.num_bytes, plan.kv_bytes, plan.token_bytes),
        compute=_compute_statistics(made, config),
        prefix_rows=PrefixRows(kv, made.rows, audit),
        policy=config.policy,
        speculator=speculator,
        overlaps=config.overlap != "off" and config.tp == 1,
    )


def _speculator(small: Path | None, vocab_size: int, config: EngineConfig) -> Speculator | None:
    if small is not None:
        settings = replace(
            config, speculation="off", draft_model=None, tp=1, num_pages=None, kv_bytes=_DRAFT_BYTES
        )
        return Speculator(ModelDrafter(load_core(small, vocab_size=vocab_size, config=settings)))
    return Speculator() if config.speculation == "lookup" else None


def _compute_statistics(made: Computing, config: EngineConfig) -> ComputeStatistics:
    import torch

    from flowforge.engine.attention.compiled import can_compute
    from flowforge.engine.self_test import has_same_bits

    decoder, kind = made.decoder, made.store.kind
    is_deterministic = can_compute(made.store.rows) and has_same_bits(decoder)
    if config.is_deterministic and not is_deterministic:
        raise EngineError(
            "EN234",
            "the kernels give a text other bits beside others than alone on this machine",
            help="leave is_deterministic out, and report it with the processor and the compiler",
        )
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
    threads = torch.get_num_threads()
    return ComputeStatistics(
        dtype,
        threads,
        tuple(kernels),
        device,
        config.tp,
        is_deterministic,
        kv_dtype="float8" if kind.is_float8 else dtype,
    )


@contextmanager
def _passive_waiting() -> Generator[None]:
    """Bring torch in with OpenMP threads that sleep while they wait.

    Threads that spin at the end of every operation make a step ten times as long as soon as another
    process wants a core. OpenMP reads this once, and other programs started from here shall not.
    """
    name = environment.WAIT_POLICY.name
    if name in os.environ:
        yield
        return
    os.environ[name] = "PASSIVE"
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def _out_of_memory_said(plan: ComputePlan) -> Generator[None]:
    """An allocation that fails although it was planned: others took the memory meanwhile."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not says_out_of_memory(error):
            raise
        raise EngineError(
            "EN232",
            f"out of memory while loading weights of {in_bytes(plan.weights.num_bytes)} and a KV "
            f"pool of {in_bytes(plan.kv_bytes)}; {in_bytes(plan.place.available_bytes)} were free "
            "before",
            help="give kv_bytes less, take a smaller model or end other programs",
        ) from error
