"""Kernels compiled for a GPU that is not there: what calls would launch, down to machine code.

Triton brings the assembler along, so a machine without a GPU can tell whether every kernel
compiles, how many registers it takes and spills, and how much shared memory it asks for.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from flowforge.engine.kernels.dialect import IS_INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Generator

HOPPER = 90
"""The compute capability of H100 and H200, without its dot."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What one compiled kernel takes.

    constants: what it was compiled for. registers, spilled_bytes: of a thread. shared_bytes: of a
    program.
    """

    name: str
    constants: dict[str, object]
    registers: int
    spilled_bytes: int
    shared_bytes: int


class _AbsentDevice:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def compiling_only(capability: int = HOPPER) -> Generator[list[CompiledKernel]]:
    """Within, kernels that are called are compiled and not launched; their results are not written.

    Yields the list to which each kernel is added that was compiled. Not where kernels are
    interpreted, and not beside kernels that run: the driver is the whole process's.
    """
    assert not IS_INTERPRETED, "interpreted kernels are not compiled"
    compiled: list[CompiledKernel] = []
    seen: set[str] = set()
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(kernel, *args, grid=grid, warmup=True, **options)
        if made is not None and made.hash not in seen:
            seen.add(made.hash)
            constants = {name: value for name, value in options.items() if name.isupper()}
            compiled.append(_measured(kernel.__name__, constants, made))
        return made

    drivers, functions = cast("Any", driver), cast("Any", JITFunction)
    before = drivers._active
    drivers.set_active(_AbsentDevice(capability))
    functions.run = compile_only
    try:
        yield compiled
    finally:
        functions.run = run
        drivers._active = before


def _measured(name: str, constants: dict[str, object], made: Any) -> CompiledKernel:
    registers, spilled = _resources(made.asm["cubin"])
    return CompiledKernel(name, constants, registers, spilled, made.metadata.shared)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a kernel, as the assembler's own tool says."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, f"no resources in {said!r}"
    return int(found[1]), int(found[2])
