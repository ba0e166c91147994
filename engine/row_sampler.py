"""Tokens chosen where the logits are, for all rows of a step at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from flowforge.engine.row_draw import NO_NUMBER, NO_TOKEN, draw_token
from flowforge.engine.sampling import logprobs_of
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from flowforge.engine.row_draw import RowDraw

_ID_BITS = 20
_LAST_ID = (1 << _ID_BITS) - 1
# Double precision of a whole vocabulary takes room.
_LOGPROB_ROWS = 32


class RowSampler(Protocol):
    """Chooses as `draw_token` does, up to rounding."""

    def sample(self, logits: torch.Tensor, draws: Sequence[RowDraw]) -> torch.Tensor:
        """A token for each row: int64 [num_rows] on the logits' device.

        logits: float32 [num_rows, vocab_size], not changed. `NO_NUMBER` and `NO_TOKEN` stand for
        what `sample` raises.
        """
        ...

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `logprobs_of` says of each row, up to rounding, on the logits' device.

        logits: float32 [num_rows, vocab_size]. token_ids: int64 [num_rows]; one below 0 counts as
        0. Returns log probabilities, float64 [num_rows], and of the likeliest tokens ids, int64
        [num_rows, num_top], and log probabilities, float64 [num_rows, num_top].
        """
        ...


class HostSampler:
    """Waits for the logits and chooses on the host: for devices without the kernels.

    Log probabilities have the bits that they have where logits come to the host, kept rows' too.
    """

    def sample(self, logits: torch.Tensor, draws: Sequence[RowDraw]) -> torch.Tensor:
        """See `RowSampler.sample`."""
        rows = logits.cpu().numpy()
        tokens = [_token(draw, row) for draw, row in zip(draws, rows, strict=True)]
        return torch.tensor(tokens, dtype=torch.int64, device=logits.device)

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `RowSampler.logprobs`."""
        num_rows, num_top = len(logits), min(num_top, logits.shape[1])
        own = np.empty(num_rows)
        best = np.zeros((num_rows, num_top), dtype=np.int64)
        top = np.full((num_rows, num_top), np.nan)
        rows = zip(logits.cpu().numpy(), token_ids.tolist(), strict=True)
        for row, (values, token_id) in enumerate(rows):
            found = logprobs_of(values, max(0, token_id), num_top)
            own[row] = found.logprob
            # Of a row that is not of numbers there is no likeliest token.
            for place, (likely_id, logprob) in enumerate(found.top):
                best[row, place], top[row, place] = likely_id, logprob
        device = logits.device
        return (
            torch.from_numpy(own).to(device),
            torch.from_numpy(best).to(device),
            torch.from_numpy(top).to(device),
        )


class KernelSampler:
    """By the Triton kernels, and by torch: nothing waits for the device."""

    def sample(self, logits: torch.Tensor, draws: Sequence[RowDraw]) -> torch.Tensor:
        """See `RowSampler.sample`."""
        from flowforge.engine.kernels.draw_inputs import draw_inputs
        from flowforge.engine.kernels.sampling import sample_rows

        found = draw_inputs(draws, logits.shape[1], logits.device)
        return sample_rows(
            logits, found.params, seen=found.seen, biases=found.biases, mask=found.mask
        )

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `RowSampler.logprobs`."""
        groups = zip(logits.split(_LOGPROB_ROWS), token_ids.split(_LOGPROB_ROWS), strict=True)
        found = [_group_logprobs(group, ids, num_top) for group, ids in groups]
        own, best, top = zip(*found, strict=True)
        return torch.cat(own), torch.cat(best), torch.cat(top)


def _token(draw: RowDraw, row: npt.NDArray[np.float32]) -> int:
    try:
        return draw_token(draw, row)
    except EngineError as error:
        if error.code not in ("EN211", "EN212"):
            raise
        return NO_NUMBER if error.code == "EN211" else NO_TOKEN


def _group_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logprobs = logits.double().log_softmax(dim=1)
    own = logprobs.gather(1, token_ids.clamp(min=0).unsqueeze(1)).squeeze(1)
    # Equal ones in order of id, as on the host: a rank as the kernels have it.
    bits = torch.where(logits == 0, 0.0, logits).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    ids = torch.arange(logits.shape[1], device=logits.device)
    ranks = (ordered << _ID_BITS) | (_LAST_ID - ids)
    best = ranks.topk(min(num_top, len(ids)), dim=1).indices
    return own, best, logprobs.gather(1, best)
