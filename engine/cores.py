"""How many cores this process may compute on."""

from __future__ import annotations

import os
from pathlib import Path


def num_usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores of the affinity mask, or fewer where a control group (version 2) grants less time.

    Not those of the machine: in a container most of them are others'. A thread more than there are
    cores only waits, and lets all the others wait for it at the end of every operation.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(cores, _quota(cgroup) or cores))


def _quota(cgroup: Path) -> int | None:
    """Whole cores that the group may use, rounded up; None without a limit."""
    try:
        granted, _, period = (cgroup / "cpu.max").read_text(encoding="ascii").partition(" ")
        return None if granted == "max" else -(-int(granted) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None
