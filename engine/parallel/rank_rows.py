"""The KV rows of all ranks as one: taken out of every rank's store, and put in again.

Each rank has its own heads of every row; where ranks share a KV head, each of them keeps it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load, save

from flowforge.engine.parallel.messages import PutRows, TakeRows
from flowforge.engine.parallel.split import Rank, split_model
from flowforge.engine.step_batch import StepBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.engine.kv.moves import RowMove
    from flowforge.engine.kv.store import KvStore, RowKind
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.parallel.group import RankGroup
    from flowforge.engine.parallel.split_forward import SplitForward
    from flowforge.engine.parallel.workers import Workers

    Rows = tuple[torch.Tensor, torch.Tensor | None]
    """Rows and scales, as `KvStore.take_out` gives them."""


# At once: they are gathered beside the pages, where a GPU has only its margin.
_MOST_SLOTS = 512


def heads_of_ranks(model: ModelConfig, count: int) -> tuple[int, ...]:
    """How many KV heads each rank of a model keeps."""
    return tuple(len(split_model(model, Rank(index, count)).kv_heads) for index in range(count))


class RankRows:
    """One rank's rows, and its end of bringing them together. heads: of each rank."""

    def __init__(self, store: KvStore, group: RankGroup, heads: tuple[int, ...]) -> None:
        self.store = store
        self.heads = heads
        self._group = group

    def gather(self, slots: Sequence[int]) -> Rows | None:
        """The rows of some slots with the heads of all ranks; None on all ranks but the first."""
        rows, scales = self.store.take_out(slots)
        of_rows = self._gathered(rows)
        of_scales = None if scales is None else self._gathered(scales.unsqueeze(-1))
        if of_rows is None:
            return None
        return of_rows, None if of_scales is None else of_scales.squeeze(-1)

    def put_in(self, message: PutRows) -> None:
        """Write this rank's part of rows that were gathered."""
        tensors = load(message.tensors)
        self.store.put_in(message.slots, tensors["rows"], tensors.get("scales"))

    def messages(
        self, slots: Sequence[int], rows: torch.Tensor, scales: torch.Tensor | None
    ) -> list[PutRows]:
        """Gathered rows, cut into what each rank is to put in."""
        of_rows = rows.split(self.heads, dim=2)
        of_scales = [None] * len(self.heads) if scales is None else scales.split(self.heads, dim=2)
        found: list[PutRows] = []
        for part, of_part in zip(of_rows, of_scales, strict=True):
            tensors = {"rows": part.contiguous()}
            if of_part is not None:
                tensors["scales"] = of_part.contiguous()
            found.append(PutRows(list(slots), save(tensors)))
        return found

    def _gathered(self, part: torch.Tensor) -> torch.Tensor | None:
        """[num_layers, 2, heads, slots, size] of all ranks' heads, as bytes on the way."""
        plain = part.contiguous().view(torch.uint8)
        sizes = [plain.numel() // plain.shape[2] * heads for heads in self.heads]
        gathered = self._group.gather(plain.view(1, -1).to(self._group.device), sizes)
        if gathered is None:
            return None
        num_layers, sides, _, num_slots, size = plain.shape
        parts = [
            one.view(num_layers, sides, heads, num_slots, size)
            for one, heads in zip(gathered.cpu().split(sizes, dim=1), self.heads, strict=True)
        ]
        return torch.cat(parts, dim=2).view(part.dtype)


class SplitRows:
    """Of the first rank: the rows of all; satisfies `MovableRows`."""

    def __init__(self, own: RankRows, forward: SplitForward, workers: Workers) -> None:
        self._own = own
        self._forward = forward
        self._workers = workers

    @property
    def kind(self) -> RowKind:
        """See `MovableRows.kind`."""
        return replace(self._own.store.kind, num_kv_heads=sum(self._own.heads))

    def move_rows(self, moves: Iterable[RowMove]) -> None:
        """See `KvStore.move_rows`. Raises EngineError EN237."""
        self._forward.move(StepBatch(tuple(moves), [], [], [], (), (), ()))

    def take_out(self, slots: Sequence[int]) -> Rows:
        """See `KvStore.take_out`. Raises EngineError EN237."""
        starts = range(0, len(slots), _MOST_SLOTS)
        parts = [self._gather(slots[start : start + _MOST_SLOTS]) for start in starts]
        rows = torch.cat([rows.view(torch.uint8) for rows, _ in parts], dim=3)
        scales = [scales for _, scales in parts if scales is not None]
        return rows.view(self.kind.kept_dtype), torch.cat(scales, dim=3) if scales else None

    def put_in(self, slots: Sequence[int], rows: torch.Tensor, scales: torch.Tensor | None) -> None:
        """See `KvStore.put_in`. Raises EngineError EN237."""
        own, *others = self._own.messages(slots, rows, scales)
        with self._forward.apart():
            self._workers.send_each(others)
            self._own.put_in(own)

    def _gather(self, slots: Sequence[int]) -> Rows:
        with self._forward.apart():
            self._workers.send(TakeRows(list(slots)))
            gathered = self._own.gather(slots)
        assert gathered is not None, "the first rank is given what is gathered"
        return gathered
