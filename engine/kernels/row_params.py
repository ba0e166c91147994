"""What rows of logits are sampled by, as arrays on their device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from flowforge.engine.sampling import SamplingParams

# As in `engine/sampling.py`: what is colder is greedy.
_GREEDY_BELOW = 1e-4
_NEVER = 2.0  # a share of all that is never reached


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling parameters of rows, on their device.

    numbers: float64 [num_rows, 8]. counters: int64 [num_rows, 4]: seed's low and high word, branch,
    position. The others say what some row asks for; what none does is left out.
    """

    numbers: torch.Tensor
    counters: torch.Tensor
    has_penalties: bool
    has_top_k: bool
    has_top_p: bool
    is_greedy: bool

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], positions: Sequence[int], device: torch.device | str
    ) -> RowParams:
        """Of one row for each; positions: of the new tokens, as `sample` takes them."""
        return cls.over(
            params, *(torch.from_numpy(one).to(device) for one in cls.arrays(params, positions))
        )

    @staticmethod
    def arrays(
        params: Sequence[SamplingParams], positions: Sequence[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """`numbers` and `counters`, to be brought to the device."""
        numbers = np.array([_numbers_of(one) for one in params], dtype=np.float64)
        words = [
            (one.seed & (2**64 - 1), one.seed >> 64 & (2**64 - 1), one.branch, position)
            for one, position in zip(params, positions, strict=True)
        ]
        return numbers, np.array(words, dtype=np.uint64).view(np.int64)

    @classmethod
    def over(
        cls, params: Sequence[SamplingParams], numbers: torch.Tensor, counters: torch.Tensor
    ) -> RowParams:
        """Of arrays that are there."""
        limits = [_numbers_of(one) for one in params]
        return cls(
            numbers,
            counters,
            any(one.looks_back for one in params),
            any(one[1] < np.inf for one in limits),
            any(one[2] < _NEVER for one in limits),
            all(one[7] for one in limits),
        )


def _numbers_of(params: SamplingParams) -> tuple[float, ...]:
    is_greedy = params.temperature < _GREEDY_BELOW or params.top_k == 1
    return (
        1.0 if is_greedy else params.temperature,
        np.inf if is_greedy or params.top_k == 0 else params.top_k,
        _NEVER if is_greedy or params.top_p == 1 else params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        float(is_greedy),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """Ids that rows have had: for penalties.

    is_seen: bool [num_rows, vocab_size], in prompt or output. counts: int32 [num_rows, vocab_size],
    in the output.
    """

    is_seen: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class Biases:
    """What is added to some logits: one entry for each (row, id); -inf bans an id."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor
