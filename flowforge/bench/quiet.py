"""Whether the machine was quiet while something was measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from flowforge import environment

# Cores that other processes may take before times are not worth comparing.
_MOST_OTHERS = 0.15
# Of the wall time, on a thread that never waits.
_LEAST_CPU_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Quietness:
    """How much of the machine was this process's own, and its children's that are measured.

    cpu_share: their CPU time over wall time. others: cores that other processes used; None where
    the system does not say.
    """

    cpu_share: float
    others: float | None

    @property
    def is_quiet(self) -> bool:
        """Whether times may be compared."""
        return self.cpu_share >= _LEAST_CPU_SHARE and (self.others or 0.0) <= _MOST_OTHERS

    @property
    def words(self) -> str:
        """How busy it was, for people."""
        others = "" if self.others is None else f", others used {self.others:.1f} cores"
        return f"CPU time was {self.cpu_share:.0%} of wall time{others}"


class QuietnessMeter:
    """Looks at the machine from its making to `look`."""

    def __init__(self) -> None:
        self._at, self._own, self._all = time.monotonic(), time.process_time(), _busy_s()

    def look(self, children_s: float = 0.0, waited_s: float = 0.0) -> Quietness:
        """How it was since this was made.

        children_s: CPU time of own processes since then. waited_s: when there was nothing to do.
        """
        wall_s = time.monotonic() - self._at
        own_s = time.process_time() - self._own + children_s
        busy_s = _busy_s()
        others = None
        if busy_s is not None and self._all is not None:
            others = max(0.0, busy_s - self._all - own_s) / wall_s
        return Quietness(own_s / (wall_s - waited_s), others)


def _busy_s(path: Path = Path("/proc/stat")) -> float | None:
    """Seconds that all cores together have worked since the start of the machine."""
    try:
        words = path.read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _waiting, irq, soft_irq = map(int, words[1:8])
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


def machine_line() -> str:
    """What a record of figures says of where they were taken."""
    from flowforge.engine.cores import num_usable_cores
    from flowforge.engine.processor import find_processor

    processor = find_processor()
    wide = " ".join(processor.wide_instructions)
    name = f"{processor.name} ({wide})" if wide else processor.name
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    threads = environment.THREADS.text("default")
    return f"{name}, {num_usable_cores()} cores, OMP_NUM_THREADS={threads}, load {load:.1f}"
