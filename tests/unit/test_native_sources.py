"""The C kernels, as compilers for processors that are not there see them."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from flowforge import environment
from flowforge.engine import native


@pytest.mark.parametrize("processor", ["x86-64", "sandybridge", "sapphirerapids"])
def test_the_kernels_are_sound_for_processors_with_and_without_wide_vectors(processor: str) -> None:
    compiler = shlex.split(environment.COMPILER.text("cc"))
    if platform.machine() != "x86_64" or not compiler or shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler for these processors here")
    sources = sorted(map(str, Path(native.__path__[0]).glob("*.c")))

    said = subprocess.run(
        [*compiler, f"-march={processor}", "-fopenmp", "-fsyntax-only", "-w", *sources],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert len(sources) >= 5
    assert "" == said.stderr
    assert 0 == said.returncode
