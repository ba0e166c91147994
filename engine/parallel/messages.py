"""What the first rank and its workers say to each other, over a socket that only they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from flowforge.engine.config import SharedAttention
    from flowforge.engine.models.linears import KernelUse
    from flowforge.engine.parallel.split import Rank
    from flowforge.engine.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class PartTask:
    """What a rank is to load, and where the ranks meet.

    context_len: as in `EngineConfig`. num_pages, page_size, num_host_slots, verifies: of the KV
    rows of every rank, see `KvStore`.
    """

    directory: Path
    context_len: int | None
    rank: Rank
    device: str
    dtype: torch.dtype
    kernels: KernelUse
    num_pages: int
    page_size: int
    num_host_slots: int
    verifies: bool
    shared_attention: SharedAttention
    meeting_file: Path


@dataclass(frozen=True, slots=True)
class PartLoaded:
    """A worker has its weights and waits for the others."""


@dataclass(frozen=True, slots=True)
class Meet:
    """All ranks have their weights: meet now."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The last that a worker says. code: of an error that an operator can act on, else None."""

    code: str | None
    message: str
    help: str | None


ToWorker: TypeAlias = "PartTask | Meet | StepBatch"
FromWorker: TypeAlias = PartLoaded | WorkerFailed
