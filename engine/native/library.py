"""The engine's own kernels: C in this folder, compiled once by the machine's compiler, and kept.

Nothing needs them: without a compiler, or where the compiled code does not compute what torch
computes, there is no library, and torch's operators do the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from flowforge.engine.model_store.store import store_root

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

WeightKind = Literal["float32", "bfloat16", "q4_0", "q4_1", "q8_0"]
"""How weights are stored; q: in groups of 32 integers, as the GGUF types of those names."""

WEIGHT_KINDS: tuple[WeightKind, ...] = ("float32", "bfloat16", "q4_0", "q4_1", "q8_0")
GROUP_SIZE = 32
MOST_COLUMNS_IN = 32_768

_SOURCE = Path(__file__).with_name("linear.c")
# Sums must not depend on what a compiler finds quicker: no contraction, no reordering.
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-fPIC", "-shared")
_TIMEOUT_S = 60


class LinearLibrary:
    """The compiled kernels; safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be loaded here."""
        self.path = path
        function: Callable[..., None] = ctypes.CDLL(str(path)).flowforge_linear
        function.argtypes = [  # type: ignore[attr-defined]  # of a function of ctypes
            ctypes.c_int,
            *(ctypes.c_void_p,) * 3,
            *(ctypes.c_int64,) * 3,
            ctypes.c_int,
        ]
        function.restype = None  # type: ignore[attr-defined]  # of a function of ctypes
        self._linear = function
        self._is_threaded = _is_openmp_shared()

    def linear(
        self, kind: WeightKind, weight: torch.Tensor, x: torch.Tensor, num_rows_out: int
    ) -> torch.Tensor:
        """Multiply, in float32, with a transposed matrix: [T, num_rows_out].

        x: float32 [T, columns in], contiguous, columns a multiple of `GROUP_SIZE` and at most
        `MOST_COLUMNS_IN`. weight: contiguous, as stored. Each row of the result has the same bits
        whatever other rows there are and however many threads.
        """
        num_rows, depth = x.shape
        out = torch.empty((num_rows, num_rows_out), dtype=torch.float32)
        self._linear(
            WEIGHT_KINDS.index(kind),
            weight.data_ptr(),
            x.data_ptr(),
            out.data_ptr(),
            num_rows,
            num_rows_out,
            depth,
            torch.get_num_threads() if self._is_threaded else 1,
        )
        return out


@cache
def find_library() -> LinearLibrary | None:
    """The kernels, compiled now where they are not kept yet; None where that cannot be.

    Why not is logged once. The compiler is $CC, else cc.
    """
    try:
        path = _compiled()
        library = None if path is None else LinearLibrary(path)
    except (OSError, subprocess.SubprocessError) as error:
        _logger.info("no compiled kernels: %s", error)
        return None
    if library is not None and not _computes_right(library):
        _logger.warning("the compiled kernels %s compute wrong results: not used", library.path)
        return None
    return library


def _compiled() -> Path | None:
    source = _SOURCE.read_bytes()
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        _logger.info("no compiled kernels: there is no C compiler %r", " ".join(compiler))
        return None
    # Code for one processor may not run on another that shares the folder.
    parts = (source, " ".join((*compiler, *_FLAGS)).encode(), _processor().encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    path = store_root() / "native" / f"linear-{key}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=path.parent) as folder:
            made = Path(folder) / "linear.so"
            _compile([*compiler, *_FLAGS, str(_SOURCE), "-o", str(made)])
            made.replace(path)
    return path


def _compile(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()
        raise OSError(f"{' '.join(command)} failed: {reason}")


def _processor() -> str:
    """What distinguishes this machine's instructions; its name where nothing tells more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _is_openmp_shared() -> bool:
    """Whether kernels and torch share an OpenMP: two would fight over cores."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    files = {line.rpartition(" ")[2] for line in maps if "omp" in line.rpartition("/")[2]}
    return len(files) == 1 and "libgomp" in files.pop()


def _computes_right(library: LinearLibrary) -> bool:
    """On one small product; what each kind stands for is the tests' to check."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((5, 64), generator=generator)
    weight = torch.randn((9, 64), generator=generator)
    with torch.inference_mode():
        found = library.linear("float32", weight, x, 9)
        alone = library.linear("float32", weight, x[:1], 9)
    is_close = torch.allclose(found, x @ weight.T, rtol=1e-4, atol=1e-4)
    return is_close and torch.equal(found[:1], alone)
