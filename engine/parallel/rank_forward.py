"""A rank's forward pass over its own part: made in two steps, because weights take long to read.

All ranks read first, and meet when each has what it needs: so a model that cannot be loaded is told
of before anyone waits for anyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowforge.engine.devices import make_current
from flowforge.engine.forward import ForwardPass
from flowforge.engine.models.config import read_model_config
from flowforge.engine.paged_rows import make_rows
from flowforge.engine.parallel.group import RankGroup
from flowforge.engine.parallel.loading import PartLoading
from flowforge.engine.parallel.rank_rows import RankRows, heads_of_ranks

if TYPE_CHECKING:
    from flowforge.engine.parallel.decoder import SplitDecoder
    from flowforge.engine.parallel.messages import PartTask


@dataclass(frozen=True, slots=True)
class MetRank:
    """A rank that can compute together with the others."""

    forward: ForwardPass
    decoder: SplitDecoder
    group: RankGroup
    rows: RankRows


class RankPart:
    """One rank's weights and KV rows, not met yet. Raises as `load_decoder`, and EN236."""

    def __init__(self, task: PartTask) -> None:
        self._task = task
        make_current(task.device)
        model = read_model_config(Path(task.directory), task.context_len)
        self._loading = PartLoading(Path(task.directory), model, task.rank)
        self._loaded = self._loading.load(
            task.rows.dtype, task.device, task.rows.kernels, task.kernel_rows
        )
        self.rows = make_rows(task.rows, self._loading.part.config, torch.device(task.device))

    def meet(self) -> MetRank:
        """Join the other ranks; blocks until all are there. Raises RuntimeError."""
        task = self._task
        group = RankGroup(task.rank, task.meeting_file, torch.device(task.device))
        decoder = self._loading.decoder(self._loaded, group)
        forward = ForwardPass(decoder, self.rows.store, self.rows.attention)
        heads = heads_of_ranks(self._loading.config, task.rank.count)
        return MetRank(forward, decoder, group, RankRows(self.rows.store, group, heads))
