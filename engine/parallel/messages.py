"""What the first rank and its workers say to each other, over a socket that only they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.paged_rows import RowsPlan
    from flowforge.engine.parallel.split import Rank
    from flowforge.engine.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class PartTask:
    """What a rank is to load, and where the ranks meet.

    context_len, kernel_rows: as in `EngineConfig`.
    """

    directory: Path
    context_len: int | None
    rank: Rank
    device: str
    rows: RowsPlan
    kernel_rows: int | None
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


@dataclass(frozen=True, slots=True)
class TakeRows:
    """All ranks bring the KV rows of some slots together."""

    slots: list[int]


@dataclass(frozen=True, slots=True)
class PutRows:
    """A rank writes rows into some slots. tensors: its rows and scales, as a safetensors file."""

    slots: list[int]
    tensors: bytes


ToWorker: TypeAlias = "PartTask | Meet | StepBatch | TakeRows | PutRows"
FromWorker: TypeAlias = PartLoaded | WorkerFailed
