"""Whether the kernels are for a device; asked before anything of theirs is imported."""

from __future__ import annotations

import logging
from functools import cache

import torch

_logger = logging.getLogger(__name__)

# bfloat16 units and everything that Triton compiles to are there from Ampere on.
LEAST_CAPABILITY = (8, 0)


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether tensors of this device are the kernels' to compute with, and not torch's operators'.

    Why a GPU's are not is logged once.
    """
    if device.type != "cuda":
        return False
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        _logger.warning(
            "the GPU kernels need compute capability %d.%d, %s has %d.%d: torch computes instead",
            *LEAST_CAPABILITY,
            device,
            *capability,
        )
        return False
    try:
        import triton
    except ImportError as error:
        _logger.warning("the GPU kernels need triton (%s): torch computes instead", error)
        return False
    _logger.info("GPU kernels by triton %s", triton.__version__)
    return True
