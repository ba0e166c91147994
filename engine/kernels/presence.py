"""Whether the kernels are for a device; asked before anything of theirs is imported."""

from __future__ import annotations

import logging
from functools import cache

import torch

_logger = logging.getLogger(__name__)

# bfloat16 units and what Triton compiles to are there from Ampere on, float8 from Ada on.
LEAST_CAPABILITY = (8, 0)
LEAST_FLOAT8_CAPABILITY = (8, 9)


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether tensors of this device are the kernels' to compute with, and not torch's operators'.

    They compile and are held to torch on a small case first, so that a driver or compiler that does
    not know them costs a warning and speed, and nothing else. Why a GPU has none is logged once.
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
    if not _are_right(device):
        return False
    _logger.info("GPU kernels by triton %s", triton.__version__)
    return True


@cache
def has_float8_kernels(device: torch.device) -> bool:
    """Whether the kernels are for float8 on a device, too; why not is logged once."""
    if not has_kernels(device):
        return False
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_FLOAT8_CAPABILITY:
        _logger.warning(
            "kernels for float8 need compute capability %d.%d, %s has %d.%d: torch computes "
            "instead, more slowly",
            *LEAST_FLOAT8_CAPABILITY,
            device,
            *capability,
        )
        return False
    return _are_right(device, is_float8=True)


def _are_right(device: torch.device, *, is_float8: bool = False) -> bool:
    try:
        from flowforge.engine.kernels import checks

        check = checks.check_float8_kernels if is_float8 else checks.check_kernels
        wrong = [check.name for check in check(str(device)) if not check.is_right]
    except Exception as error:
        # Whatever a compiler or driver fails with: torch's operators are always there.
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        _logger.warning("the GPU kernels do not run here, torch computes instead: %s", told)
        return False
    if wrong:
        _logger.warning("GPU kernels compute wrong results (%s): not used", ", ".join(wrong))
    return not wrong
