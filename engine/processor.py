"""The processor that computes, as the system names it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# What the C kernels and torch gain most from.
_WIDE = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve")
_NAMES, _INSTRUCTIONS = ("model name", "CPU part"), ("flags", "Features")


@dataclass(frozen=True, slots=True)
class Processor:
    """name: its model. instructions: extensions that all of its cores have, as Linux names them."""

    name: str
    instructions: frozenset[str]

    @property
    def wide_instructions(self) -> tuple[str, ...]:
        """Those of vectors and matrices that make a model quick, the oldest first."""
        return tuple(name for name in _WIDE if name in self.instructions)

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies bfloat16."""
        return not self.instructions.isdisjoint(("amx_bf16", "avx512_bf16"))

    @property
    def key(self) -> str:
        """Differs where code compiled for this one may not run, or not be the quickest."""
        return " ".join((platform.machine(), self.name, *sorted(self.instructions)))


@cache
def find_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """This machine's. Without Linux's cpuinfo its instructions are not known, so it has none."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    parts = (line.partition(":") for line in lines)
    rows = [(key.strip(), value.strip()) for key, _, value in parts]
    names = dict.fromkeys(value for key, value in rows if key in _NAMES)
    sets = [frozenset(value.split()) for key, value in rows if key in _INSTRUCTIONS]
    instructions = frozenset[str].intersection(*sets) if sets else frozenset[str]()
    name = ", ".join(names) or platform.processor() or platform.machine()
    return Processor(name, instructions)
