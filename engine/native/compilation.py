"""The C sources of this folder, compiled into one file by the machine's compiler, and kept."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from flowforge import environment
from flowforge.engine.model_store.store import store_root
from flowforge.engine.processor import find_processor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_logger = logging.getLogger(__name__)

LibraryT = TypeVar("LibraryT")

# Sums must not depend on what a compiler finds quicker: no contraction, no reordering.
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-fPIC", "-shared")
# Seconds alone, a minute where several processes begin at once on a busy machine.
_TIMEOUT_S = 300


def load_library(make: Callable[[Path], LibraryT]) -> LibraryT | None:
    """A library of the compiled sources, which are compiled now where they are not kept yet.

    make: from the compiled file. None where it cannot be; why not is logged. The compiler is $CC,
    else cc.
    """
    try:
        path = _compiled()
        return None if path is None else make(path)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _logger.info("no compiled kernels: %s", error)
        return None


def void_function(path: Path, name: str, argument_types: Sequence[type]) -> Callable[..., None]:
    """A function of a compiled file. Raises OSError for a file that cannot be loaded here."""
    function: Callable[..., None] = getattr(ctypes.CDLL(str(path)), name)
    function.argtypes = list(argument_types)  # type: ignore[attr-defined]  # of a function of ctypes
    function.restype = None  # type: ignore[attr-defined]  # of a function of ctypes
    return function


@cache
def is_openmp_shared() -> bool:
    """Whether kernels and torch share an OpenMP: two would fight over cores.

    Only where they do may kernels use threads. Ask when both are loaded.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    files = {line.rpartition(" ")[2] for line in maps if "omp" in line.rpartition("/")[2]}
    return len(files) == 1 and "libgomp" in files.pop()


def _compiled() -> Path | None:
    folder = Path(__file__).parent
    sources = sorted(folder.glob("*.c"))
    compiler = shlex.split(environment.COMPILER.text("cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        _logger.info("no compiled kernels: there is no C compiler %r", " ".join(compiler))
        return None
    # Code for one processor may not run on another that shares the folder.
    texts = [file.read_bytes() for file in (*sources, *sorted(folder.glob("*.h")))]
    parts = (*texts, " ".join((*compiler, *_FLAGS)).encode(), find_processor().key.encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    path = store_root() / "native" / f"kernels-{key}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            _compile([*compiler, *_FLAGS, *map(str, sources), "-lm", "-o", str(made)])
            made.replace(path)
    return path


def _compile(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()
        raise OSError(f"{' '.join(command)} failed: {reason}")
