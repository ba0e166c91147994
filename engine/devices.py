"""Which device an engine computes on: decided from what the machine says that it has.

`find_cuda_devices` asks torch; everything else here is decided from its answer, so that a machine
without a GPU can test what happens on one with several.
"""

from __future__ import annotations

import logging
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.memory import HOST_RULE, MemoryRule, free_memory
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

_logger = logging.getLogger(__name__)

DEVICE_PATTERN = re.compile(r"auto|cpu|cuda(?::(0|[1-9][0-9]{0,3}))?")
"""What `EngineConfig.device` may be."""

# bfloat16 units and everything that Triton compiles to are there from Ampere on.
_LEAST_CAPABILITY = (8, 0)
_MARGIN_BYTES = 1 << 30
_MARGIN_SHARE = 20


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU as torch sees it. capability: (major, minor); bytes of its memory."""

    index: int
    name: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 in hardware."""
        return self.capability >= _LEAST_CAPABILITY


@dataclass(frozen=True, slots=True)
class CudaFinding:
    """The GPUs that can be used; if there are none, why_none says the reason in words."""

    devices: tuple[CudaDevice, ...]
    why_none: str = "torch finds no CUDA device"


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """Where an engine computes. name: as torch has it. cuda: None on the CPU.

    available_bytes: what weights and KV pages may take together, before either is there.
    """

    name: str
    cuda: CudaDevice | None
    available_bytes: int
    rule: MemoryRule

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.cuda is not None


def find_cuda_devices() -> CudaFinding:
    """The GPUs of this machine that torch can compute on. Never raises."""
    import torch

    if torch.version.cuda is None:
        return CudaFinding((), f"torch {torch.__version__} is built without CUDA")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            devices = tuple(_cuda_device(index) for index in range(count))
        except (RuntimeError, AssertionError) as error:
            return CudaFinding((), f"CUDA cannot be used: {_first_line(error)}")
    if devices:
        return CudaFinding(devices)
    # An old driver is told of by a warning only.
    reasons = [_first_line(one.message) for one in told]
    return CudaFinding((), reasons[0] if reasons else CudaFinding(()).why_none)


def choose_device(asked: str, found: CudaFinding, host_bytes: int | None = None) -> ChosenDevice:
    """Settle what `EngineConfig.device` asks for.

    auto: the GPU with the most free memory, else the CPU. host_bytes: free memory of the machine;
    None asks it. Raises EngineError EN235 for a GPU that is not there.
    """
    if asked == "cpu" or (asked == "auto" and not found.devices):
        return ChosenDevice("cpu", None, host_bytes or free_memory(), HOST_RULE)
    if not found.devices:
        raise EngineError(
            "EN235",
            f"device {asked!r} is asked for, and {found.why_none}",
            help="take device cpu or auto; 'flowforge doctor' says what a GPU lacks",
        )
    if asked in ("auto", "cuda"):
        device = max(found.devices, key=lambda one: (one.free_bytes, -one.index))
    else:
        device = _device_of(asked, found.devices)
    if device.capability < _LEAST_CAPABILITY:
        _logger.warning(
            "%s has compute capability %d.%d, and the engine's kernels need %d.%d: torch's "
            "operators compute instead, in float32",
            device.name,
            *device.capability,
            *_LEAST_CAPABILITY,
        )
    margin = _MARGIN_BYTES + device.total_bytes // _MARGIN_SHARE
    rule = MemoryRule(margin, share_of_free=1, most_kv_bytes=None)
    return ChosenDevice(f"cuda:{device.index}", device, device.free_bytes, rule)


def make_current(name: str) -> None:
    """Have this thread's kernels launched on a device, as torch names it; nothing on the CPU."""
    if name.startswith("cuda"):
        import torch

        torch.cuda.set_device(name)


def _device_of(asked: str, devices: Sequence[CudaDevice]) -> CudaDevice:
    index = int(asked.removeprefix("cuda:"))
    for device in devices:
        if device.index == index:
            return device
    known = ", ".join(f"cuda:{device.index} ({device.name})" for device in devices)
    raise EngineError(
        "EN235",
        f"device {asked!r} is asked for, and this machine has {known}",
        help="name one of these; CUDA_VISIBLE_DEVICES may hide others",
    )


def _cuda_device(index: int) -> CudaDevice:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    capability = (properties.major, properties.minor)
    return CudaDevice(index, properties.name, capability, free_bytes, total_bytes)


def _first_line(told: object) -> str:
    return (str(told).strip().splitlines() or [type(told).__name__])[0]
