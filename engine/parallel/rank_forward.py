"""A rank's forward pass over its own part: made in two steps, because weights take long to read.

All ranks read first, and meet when each has what it needs: so a model that cannot be loaded is told
of before anyone waits for anyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.backends import choose_backend, find_kernel_backend
from flowforge.engine.attention.compiled import find_attention_library
from flowforge.engine.devices import make_current
from flowforge.engine.forward import ForwardPass
from flowforge.engine.kv.store import KvStore
from flowforge.engine.models.config import read_model_config
from flowforge.engine.parallel.group import RankGroup
from flowforge.engine.parallel.loading import PartLoading

if TYPE_CHECKING:
    from flowforge.engine.parallel.decoder import SplitDecoder
    from flowforge.engine.parallel.messages import PartTask


@dataclass(frozen=True, slots=True)
class MetRank:
    """A rank that can compute together with the others."""

    forward: ForwardPass
    decoder: SplitDecoder
    group: RankGroup


class RankPart:
    """One rank's weights and KV rows, not met yet. Raises as `load_decoder`, and EN236."""

    def __init__(self, task: PartTask) -> None:
        self._task = task
        make_current(task.device)
        model = read_model_config(Path(task.directory), task.context_len)
        self._loading = PartLoading(Path(task.directory), model, task.rank)
        self._loaded = self._loading.load(task.dtype, task.device, task.kernels)
        part = self._loading.part.config
        self.store = KvStore(
            num_layers=part.num_layers,
            num_kv_heads=part.num_kv_heads,
            head_dim=part.head_dim,
            num_pages=task.num_pages,
            page_size=task.page_size,
            dtype=task.dtype,
            device=torch.device(task.device),
            num_host_slots=task.num_host_slots,
            verifies=task.verifies,
        )

    def meet(self) -> MetRank:
        """Join the other ranks; blocks until all are there. Raises RuntimeError."""
        task = self._task
        group = RankGroup(task.rank, task.meeting_file, torch.device(task.device))
        decoder = self._loading.decoder(self._loaded, group)
        kernel = None if task.kernels == "never" else find_attention_library()
        kernels = find_kernel_backend(self.store, decoder.config.num_heads, task.shared_attention)
        attention = kernels or choose_backend(self.store, task.shared_attention, kernel)
        return MetRank(ForwardPass(decoder, self.store, attention), decoder, group)
