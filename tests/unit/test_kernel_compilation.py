"""Kernels compiled to machine code of a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# In a process of its own: here kernels are interpreted. One kernel of each family that is large.
PROGRAM = """
import torch
from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.kernels.ahead import compiling_only
from flowforge.engine.kernels.checks import attention_error, linear_error, random_matrix
from flowforge.engine.kernels.row_params import RowParams
from flowforge.engine.kernels.sampling import sample_rows
from flowforge.engine.kernels.trial_steps import Heads, paged_step
from flowforge.engine.sampling import SamplingParams

step = paged_step(Heads(2, 4, 64, torch.bfloat16), [(40, 1), (20, 9)])
rows = RowParams.of([SamplingParams(temperature=1, seed=1)], [0], "cpu")
with compiling_only() as compiled:
    attention_error(step, LayerAttention(0.1))
    linear_error(random_matrix("q4_1", 64, 128, "cpu"), 1, torch.bfloat16)
    sample_rows(torch.zeros((1, 1000)), rows)
for kernel in compiled:
    print(kernel.name, kernel.registers, kernel.spilled_bytes, kernel.shared_bytes)
"""


def test_kernels_compile_for_hopper_and_keep_to_registers(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)

    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert said.returncode == 0, said.stderr
    compiled = [line.split() for line in said.stdout.splitlines()]
    names = {name for name, *_ in compiled}
    assert {"_store_kernel", "_items_kernel", "_merge_kernel", "_chunks_kernel"} < names
    assert {"_linear_kernel", "_adjust_kernel", "_search_kernel", "_pick_kernel"} < names
    for name, registers, spilled, shared in compiled:
        assert 0 == int(spilled), name
        assert 16 <= int(registers) <= 255, name
        assert int(shared) <= 227 << 10, name
