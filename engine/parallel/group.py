"""What the ranks of a split model tell each other: sums, and parts of logits."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flowforge.engine.parallel.split import Rank

# Longer than any step; whoever waits so long waits for a process that hangs.
_TIMEOUT = timedelta(seconds=300)


class RankGroup:
    """One rank's end of the group. No default group of torch is touched: engines may overlap.

    Calls block until all ranks made the same call, on gloo; on NCCL the device's stream waits.
    Raises RuntimeError when another rank is gone.
    """

    def __init__(self, rank: Rank, meeting_file: Path, device: torch.device) -> None:
        """meeting_file: in a folder that only this user may read; the same for all ranks."""
        self.rank = rank
        self.device = device
        self._group = _make_group(meeting_file, rank, device)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, in place where that can be; every rank gets it."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def gather(self, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor | None:
        """All ranks' columns side by side, for the first rank; None for the others.

        x: [rows, sizes[rank]].
        """
        widest = max(sizes)
        padded = x.new_zeros((x.shape[0], widest))
        padded[:, : x.shape[1]] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        self._group.allgather([parts], [padded]).wait()
        if not self.rank.is_first:
            return None
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=1)

    def abort(self) -> None:
        """Let whoever waits for another rank fail. From any thread; idempotent."""
        self._group.abort()


class _Work(Protocol):
    def wait(self) -> object: ...


class _Group(Protocol):
    """What torch's groups of all kinds have, and their stubs lack."""

    def allreduce(self, tensors: list[torch.Tensor]) -> _Work: ...

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> _Work: ...

    def abort(self) -> None: ...


def _make_group(meeting_file: Path, rank: Rank, device: torch.device) -> _Group:
    c10d = cast("Any", torch.distributed)
    store = c10d.FileStore(str(meeting_file), rank.count)
    store.set_timeout(_TIMEOUT)
    if device.type == "cuda":
        kind = c10d.ProcessGroupNCCL
        options = kind.Options()
    else:
        kind = c10d.ProcessGroupGloo
        options = kind._Options()
        # All ranks are on this machine: no other interface has to be found, or to be reachable.
        options._devices = [kind.create_device(hostname="127.0.0.1")]
    options._timeout = _TIMEOUT
    group: _Group = kind(store, rank.index, rank.count, options)
    return group
