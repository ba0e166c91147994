"""Arrays of one step in one copy: from the host to the device, and back.

Through pinned memory, so nothing waits: torch keeps it from being used again before its copy is
done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

_ALIGNMENT = 16


def to_device(
    arrays: Sequence[npt.NDArray[np.generic]], device: torch.device
) -> list[torch.Tensor]:
    """The arrays on a device; views of one tensor. They may be changed or dropped at once."""
    starts, size = _places([array.nbytes for array in arrays])
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    values = [torch.from_numpy(array) for array in arrays]
    for place, value in zip(_views(host, starts, values), values, strict=True):
        place.copy_(value)
    return _views(host.to(device, non_blocking=True), starts, values)


class CopyToHost:
    """Tensors on their way to the host, behind all that the device was told before."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._done: torch.cuda.Event | None = None
        self._values: list[torch.Tensor] = []
        if not tensors:
            return
        starts, size = _places([tensor.nbytes for tensor in tensors])
        device = tensors[0].device
        packed = torch.empty(size, dtype=torch.uint8, device=device)
        for place, tensor in zip(_views(packed, starts, tensors), tensors, strict=True):
            place.copy_(tensor)
        if device.type == "cpu":
            self._values = _views(packed, starts, tensors)
            return
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(device))
        self._values = _views(host, starts, tensors)

    def read(self) -> list[npt.NDArray[np.generic]]:
        """The arrays, in order, once they are there. Raises what went wrong on the device.

        Copy what is to be kept: each keeps all.
        """
        if self._done is not None:
            self._done.synchronize()
        return [value.numpy() for value in self._values]


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where arrays of these bytes begin in one, and its size."""
    starts: list[int] = []
    size = 0
    for one in sizes:
        starts.append(size)
        size += -(-one // _ALIGNMENT) * _ALIGNMENT
    return starts, size


def _views(
    packed: torch.Tensor, starts: Sequence[int], like: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Tensors with the types and shapes of others, that lie in one of bytes."""
    return [
        packed[start : start + one.nbytes].view(one.dtype).view(one.shape)
        for start, one in zip(starts, like, strict=True)
    ]
