"""Compile every GPU kernel to machine code for a GPU that is not there: registers, spills, memory.

python benchmarks/compile_kernels.py [--all] [--capability 90]

Needs triton and no GPU. Prints one line a kernel; ends with 1 if one of those for bfloat16 spills
registers or wants more shared memory than a multiprocessor of Hopper has for a program. --all: all
head sizes and float32 too, which takes some minutes; float32 is for tests and may spill.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Literal

# Read when triton is imported.
os.environ.pop("TRITON_INTERPRET", None)

import torch

from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.float8 import FLOAT8
from flowforge.engine.kernels import store
from flowforge.engine.kernels.ahead import HOPPER, CompiledKernel, compiling_only
from flowforge.engine.kernels.checks import (
    attention_error,
    gate_error,
    linear_error,
    norm_error,
    random_matrix,
    rotation_error,
)
from flowforge.engine.kernels.row_params import RowParams, Seen
from flowforge.engine.kernels.sampling import (
    adjust_rows,
    draw_tokens,
    gumbel_tokens,
)
from flowforge.engine.kernels.trial_steps import Heads, paged_step
from flowforge.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from flowforge.engine.models.quantized import QuantizedKind

MOST_SHARED_BYTES = 227 << 10
FLOAT8_CAPABILITY = 89


def compile_attention(heads: Heads, *, is_thorough: bool, has_float8: bool) -> None:
    """Items of one and of many readers, merging, chunks; thorough: windows, caps and float8 too."""
    sequences = [(300, 1), (70, 1), (200, 117)]
    step = paged_step(heads, sequences, shared_pages=2)
    attention_error(step, LayerAttention(0.1))
    if is_thorough:
        attention_error(step, LayerAttention(0.1, window=7, softcap=2.0))
        if has_float8:
            attention_error(step, LayerAttention(0.1), is_float8=True)


def compile_others(dtype: torch.dtype, *, has_float8: bool) -> None:
    """Everything that a layer and a choice of tokens need beside attention."""
    heads = Heads(8, 4, 128, dtype)
    norm_error(2, 4096, dtype, "cpu")
    rotation_error(heads, 128, True, "cpu")
    gate_error(2, 4096, "silu", dtype, "cpu")
    gate_error(2, 4096, "gelu_tanh", dtype, "cpu")
    rows = torch.zeros((2, 8, 64, 128), dtype=dtype)
    k, v = torch.zeros((2, 4, 8, 128), dtype=dtype)
    slots = torch.arange(4)
    store.store_rows(k, v, rows, slots)
    store.copy_slots(rows.view(-1, 64, 128), slots, slots + 8, slots)
    if has_float8:
        rounded, scales = rows.to(FLOAT8), torch.zeros((2, 8, 64))
        store.store_rows(k, v, rounded, slots, scales)
        for plane in (rounded.view(torch.uint8), scales.unsqueeze(-1)):
            store.copy_slots(plane.flatten(0, 1), slots, slots + 8, slots)
    kinds: list[QuantizedKind | Literal["float8"]] = ["q4_0", "q8_0"]
    if has_float8:
        kinds.append("float8")
    for kind in kinds:
        for num_rows in (1, 32, 64):
            linear_error(random_matrix(kind, 256, 1024, "cpu"), num_rows, dtype)


def compile_sampling() -> None:
    """With penalties, mask and every limit, by both ways to draw."""
    vocab_size = 128_256
    params = SamplingParams(
        temperature=1, top_k=40, top_p=0.9, min_p=0.1, repetition_penalty=1.1, seed=1
    )
    rows = RowParams.of([params, params], [0, 1], "cpu")
    seen = Seen(
        torch.zeros((2, vocab_size), dtype=torch.bool),
        torch.zeros((2, vocab_size), dtype=torch.int32),
    )
    mask = torch.zeros((2, -(-vocab_size // 32)), dtype=torch.int32)
    scores = adjust_rows(torch.zeros((2, vocab_size)), rows, seen=seen, mask=mask)
    draw_tokens(scores, rows)
    gumbel_tokens(scores, rows)


def is_sound(kernel: CompiledKernel) -> bool:
    """Whether a kernel keeps to registers and to the memory of a multiprocessor."""
    return kernel.spilled_bytes == 0 and kernel.shared_bytes <= MOST_SHARED_BYTES


def main() -> int:
    """Compile, print, judge."""
    parser = argparse.ArgumentParser(description="Compile every GPU kernel without a GPU.")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--capability", type=int, default=HOPPER)
    options = parser.parse_args()
    start = time.perf_counter()
    has_float8 = options.capability >= FLOAT8_CAPABILITY
    with compiling_only(options.capability) as compiled:
        for head_dim in (64, 80, 96, 128, 256) if options.all else (128,):
            heads = Heads(8, 4, head_dim, torch.bfloat16)
            compile_attention(heads, is_thorough=options.all, has_float8=has_float8)
        compile_others(torch.bfloat16, has_float8=has_float8)
        compile_sampling()
        num_judged = len(compiled)
        if options.all:
            compile_attention(
                Heads(8, 4, 128, torch.float32), is_thorough=False, has_float8=has_float8
            )
            compile_others(torch.float32, has_float8=has_float8)
    for kernel in compiled:
        constants = " ".join(f"{name}={value}" for name, value in kernel.constants.items())
        print(
            f"{kernel.name:16} {kernel.registers:4} registers {kernel.spilled_bytes:6} B spilled "
            f"{kernel.shared_bytes:7} B shared  {constants}"
        )
    unsound = [kernel.name for kernel in compiled[:num_judged] if not is_sound(kernel)]
    seconds = time.perf_counter() - start
    print(f"{len(compiled)} kernels in {seconds:.0f} s; unsound: {', '.join(unsound) or 'none'}")
    return 1 if unsound else 0


if __name__ == "__main__":
    sys.exit(main())
