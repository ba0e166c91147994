"""Arrays of one step in one copy: from the host to the device, and back.

Through pinned memory, so nothing waits: torch keeps it from being used again before its copy is
done. Where the device is the CPU nothing is copied that need not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_ALIGNMENT = 16


def to_device(
    arrays: Sequence[npt.NDArray[np.generic]], device: torch.device
) -> list[torch.Tensor]:
    """The arrays on a device; views of one tensor. They may be changed or dropped at once."""
    if device.type == "cpu":
        return [torch.from_numpy(array.copy()) for array in arrays]
    starts, size = _places([array.nbytes for array in arrays])
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    into = host.numpy()
    for start, array in zip(starts, arrays, strict=True):
        into[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    there = host.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes]
        .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        .view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


class CopyToHost:
    """Tensors on their way to the host, behind all that the device was told before."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._done: torch.cuda.Event | None = None
        if not tensors or tensors[0].device.type == "cpu":
            self._arrays = [tensor.numpy() for tensor in tensors]
            return
        starts, size = _places([tensor.nbytes for tensor in tensors])
        device = tensors[0].device
        packed = torch.empty(size, dtype=torch.uint8, device=device)
        for start, tensor in zip(starts, tensors, strict=True):
            packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(
                tensor
            )
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(device))
        self._arrays = [
            host[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).numpy()
            for start, tensor in zip(starts, tensors, strict=True)
        ]

    def read(self) -> list[npt.NDArray[np.generic]]:
        """The arrays, in order, once they are there. Raises what went wrong on the device.

        Copy what is to be kept: each keeps all.
        """
        if self._done is not None:
            self._done.synchronize()
        return self._arrays


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where arrays of these bytes begin in one, and its size."""
    starts: list[int] = []
    size = 0
    for one in sizes:
        starts.append(size)
        size += -(-one // _ALIGNMENT) * _ALIGNMENT
    return starts, size
