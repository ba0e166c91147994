"""What the sampling kernels read beside logits, of all rows of a step, brought in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from flowforge.engine.device_copies import to_device
from flowforge.engine.kernels.row_params import Biases, RowParams, Seen
from flowforge.engine.sampling import known_biases

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from flowforge.engine.row_draw import RowDraw

    Array: TypeAlias = npt.NDArray[np.generic]

_ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """See `sample_rows`; None where no row asks for it."""

    params: RowParams
    seen: Seen | None
    biases: Biases | None
    mask: torch.Tensor | None


def draw_inputs(draws: Sequence[RowDraw], vocab_size: int, device: torch.device) -> DrawInputs:
    """Of draws, for rows of `vocab_size` logits on a device."""
    params = [draw.params for draw in draws]
    arrays: list[Array] = [*RowParams.arrays(params, [draw.position for draw in draws])]
    has_biases = any(draw.banned or draw.params.logit_bias for draw in draws)
    has_seen = any(draw.params.looks_back for draw in draws)
    has_mask = any(draw.mask is not None for draw in draws)
    if has_biases:
        arrays += _biases(draws, vocab_size)
    if has_seen:
        arrays += _seen(draws)
    if has_mask:
        arrays.append(_mask(draws, vocab_size))
    there = iter(to_device(arrays, device))
    return DrawInputs(
        RowParams.over(params, next(there), next(there)),
        biases=Biases(next(there), next(there), next(there)) if has_biases else None,
        seen=_scattered(next(there), next(there), (len(draws), vocab_size)) if has_seen else None,
        mask=next(there) if has_mask else None,
    )


def _biases(draws: Sequence[RowDraw], vocab_size: int) -> list[Array]:
    entries = [
        (row, token_id, bias)
        for row, draw in enumerate(draws)
        for token_id, bias in (
            *known_biases(draw.params, vocab_size),
            *((banned, -np.inf) for banned in draw.banned),
        )
    ]
    rows, ids, values = zip(*entries, strict=True)
    integers = (np.asarray(rows, dtype=np.int64), np.asarray(ids, dtype=np.int64))
    return [*integers, np.asarray(values, dtype=np.float32)]


def _seen(draws: Sequence[RowDraw]) -> list[Array]:
    """Places int64 [2, n] of ids that penalised rows have had, and how often in their output."""
    places: list[npt.NDArray[np.int64]] = []
    counts: list[npt.NDArray[np.int32]] = []
    for row, draw in enumerate(draws):
        if draw.params.looks_back:
            output = np.asarray(draw.output, dtype=np.int64)
            both = np.concatenate([np.asarray(draw.prompt, dtype=np.int64), output])
            ids = np.unique(both)
            places.append(np.stack([np.full_like(ids, row), ids]))
            of_output = np.zeros(len(ids), dtype=np.int32)
            np.add.at(of_output, np.searchsorted(ids, output), 1)
            counts.append(of_output)
    return [np.concatenate(places, axis=1), np.concatenate(counts)]


def _scattered(places: torch.Tensor, counts: torch.Tensor, shape: tuple[int, int]) -> Seen:
    is_seen = torch.zeros(shape, dtype=torch.bool, device=places.device)
    in_output = torch.zeros(shape, dtype=torch.int32, device=places.device)
    rows, ids = places.unbind(0)
    return Seen(
        is_seen.index_put_((rows, ids), torch.ones((), dtype=torch.bool, device=places.device)),
        in_output.index_put_((rows, ids), counts),
    )


def _mask(draws: Sequence[RowDraw], vocab_size: int) -> Array:
    mask = np.full((len(draws), -(-vocab_size // 32)), _ALL, dtype=np.uint32)
    for row, draw in enumerate(draws):
        if draw.mask is not None:
            mask[row] = draw.mask
    return mask.view(np.int32)
