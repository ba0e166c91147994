"""Where the ranks of a split model compute. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.config import EngineConfig
    from flowforge.engine.devices import ChosenDevice, CudaFinding


def share_places(place: ChosenDevice, found: CudaFinding, config: EngineConfig) -> ChosenDevice:
    """The first rank's place, with the memory that each rank may take.

    On GPUs the ranks are on adjacent ones, from the chosen one on, or from the first where that
    leaves too few. Raises EngineError EN234 for what cannot be split, EN235 for too few GPUs.
    """
    if config.is_deterministic:
        raise EngineError(
            "EN234",
            f"is_deterministic is for one process, and tp is {config.tp}",
            help="leave one of them out",
        )
    if place.cuda is None:
        # One memory for all of them.
        return replace(place, available_bytes=place.available_bytes // config.tp)
    devices = sorted(found.devices, key=lambda device: device.index)
    if len(devices) < config.tp:
        raise EngineError(
            "EN235",
            f"tp is {config.tp}, and this machine has {len(devices)} GPUs: each rank needs one",
            help=f"set tp to at most {len(devices)}, or device to cpu",
        )
    indices = [device.index for device in devices]
    first = min(indices.index(place.cuda.index), len(devices) - config.tp)
    taken = devices[first : first + config.tp]
    return replace(
        place,
        name=f"cuda:{taken[0].index}",
        cuda=taken[0],
        available_bytes=min(device.free_bytes for device in taken),
    )


def device_of_rank(place: ChosenDevice, index: int) -> str:
    """Where a rank computes, by the first rank's place."""
    return place.name if place.cuda is None else f"cuda:{place.cuda.index + index}"
