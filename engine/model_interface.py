"""What the engine's core needs of a model: a runner of step plans, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.scheduler import StepPlan


class StepRunner(Protocol):
    """Carries out the core's plans; `ModelRunner` does it on a decoder."""

    @property
    def num_rows_read(self) -> int:
        """KV rows that were read in one layer since the start; see `ReadStatistics`."""
        ...

    def execute(self, plan: StepPlan) -> list[ChunkLogits]:
        """Carry out a plan; see `ModelRunner.execute`."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkLogits:
    """What a forward pass says about one chunk.

    behind: float32 [vocab_size] behind the chunk, if it is its sequence's last, and behind each of
    its drafted tokens. scored: one for each of the chunk's `scored_rows`.
    """

    behind: tuple[npt.NDArray[np.float32], ...]
    scored: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """vocab_size: ids that may be sampled; rows above it are padding and never are.

    max_context_len: tokens of prompt and output together. eos_token_ids: any of them ends a text.
    """

    vocab_size: int
    max_context_len: int
    eos_token_ids: frozenset[int]
