"""Whole steps of the engine on random weights, for `gpu.py`: planned, computed, drawn and read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flowforge.engine.core import EngineCore
from flowforge.engine.device_step import DrawnTokens
from flowforge.engine.forward import ForwardPass
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.row_sampler import KernelSampler
from flowforge.engine.runner import ModelRunner
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.sequence import GenerationFailed, GenerationRequest, SequenceId

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.attention.backends import AttentionBackend
    from flowforge.engine.graphs import DecodeGraphs
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.sequence import Update

PROMPT = 16


@dataclass(frozen=True)
class EngineSteps:
    """What is stepped. make_graphs: reads what was drawn there; None for no graphs."""

    decoder: Decoder
    store: KvStore
    backend: AttentionBackend
    num_rows: int
    num_steps: int
    temperature: float
    make_graphs: Callable[[torch.Tensor], DecodeGraphs] | None

    def seconds(self, *, overlaps: bool) -> tuple[float, float]:
        """Of one step that samples, and of what the host does of it outside launches and waits."""
        core, device = self._core(overlaps=overlaps), self.decoder.device
        reader, num_before = _Reader(), min(4, self.num_steps)
        params = SamplingParams(
            temperature=self.temperature,
            top_p=0.95,
            ignore_eos=True,
            max_tokens=self.num_steps + num_before + 4,
        )
        for number in range(self.num_rows):
            sequence = SequenceId(number + 1)
            core.open(sequence, Namespace(salt=str(number)))
            core.append(sequence, [(7 * number + idx) % 97 + 3 for idx in range(PROMPT)])
            core.generate(sequence, GenerationRequest(params), reader)
        for _ in range(num_before):
            core.step()
        before = core.statistics().steps.host_s
        started_at = time.perf_counter()
        for _ in range(self.num_steps):
            core.step()
        taken = time.perf_counter() - started_at
        hosts = core.statistics().steps.host_s - before
        if device.type == "cuda":
            # What is in flight was launched in that time.
            torch.cuda.synchronize(device)
            taken = time.perf_counter() - started_at
        if reader.error is not None:
            raise RuntimeError(f"a step failed: {reader.error}")
        return taken / self.num_steps, hosts / self.num_steps

    def _core(self, *, overlaps: bool) -> EngineCore:
        config, store = self.decoder.config, self.store
        drawn = DrawnTokens(KernelSampler(), 2048 + self.num_rows, self.decoder.device)
        graphs = None if self.make_graphs is None else self.make_graphs(drawn.ids)
        forward = ForwardPass(self.decoder, store, self.backend, graphs, drawn.ids)
        num_pages = store.rows.shape[3] // store.page_size
        return EngineCore(
            ModelRunner(forward, drawn=drawn),
            KvCache(num_pages, store.page_size),
            SchedulerLimits(2048, self.num_rows),
            ModelLimits(config.vocab_size, config.max_context_len, frozenset()),
            clock=time.perf_counter,
            overlaps=overlaps,
        )


class _Reader:
    """Of all generations."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def put(self, update: Update) -> None:
        """See `UpdateSink`."""
        if isinstance(update, GenerationFailed):
            self.error = update.error
