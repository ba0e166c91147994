"""What the step cache knows of how an engine computes: all that changes answers, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.backends.revisions import arithmetic_of
from flowforge.engine.statistics import ComputeStatistics, KernelStatistics

if TYPE_CHECKING:
    from flowforge.engine.config import Dtype

PLAIN = ComputeStatistics()


@pytest.mark.parametrize(
    ("compute", "asked", "told"),
    [
        (PLAIN, "auto", "float32, context 8192"),
        (ComputeStatistics("bfloat16", kv_dtype="bfloat16"), "auto", "bfloat16, context 8192"),
        (PLAIN, "int4", "float32, products of integers, context 8192"),
        (PLAIN, "int8", "float32, products of integers, context 8192"),
        (ComputeStatistics(is_deterministic=True), "auto", "float32, deterministic, context 8192"),
        (ComputeStatistics(kv_dtype="float8"), "auto", "float32, KV in float8, context 8192"),
        (
            ComputeStatistics("bfloat16", device="cuda:0", kv_dtype="bfloat16"),
            "float8",
            "bfloat16, weights in float8, context 8192",
        ),
    ],
)
def test_what_changes_answers_is_told(compute: ComputeStatistics, asked: Dtype, told: str) -> None:
    assert told == arithmetic_of(compute, asked, 8192)


def test_a_context_that_may_turn_positions_otherwise_is_told() -> None:
    assert arithmetic_of(PLAIN, "auto", 8192) != arithmetic_of(PLAIN, "auto", 32768)


def test_what_was_asked_for_does_not_count_beside_what_it_came_to() -> None:
    assert arithmetic_of(PLAIN, "auto", 64) == arithmetic_of(PLAIN, "float32", 64)


def test_packed_weights_on_a_gpu_are_the_same_numbers() -> None:
    on_gpu = ComputeStatistics("bfloat16", device="cuda:1", kv_dtype="bfloat16")

    assert arithmetic_of(on_gpu, "auto", 64) == arithmetic_of(on_gpu, "int4", 64)


@pytest.mark.parametrize(
    "other",
    [
        ComputeStatistics(num_threads=8),
        ComputeStatistics(num_ranks=2),
        ComputeStatistics(device="cuda:0"),
        ComputeStatistics(kernels=(KernelStatistics("q4_0", 64, 64, 4),)),
    ],
    ids=["threads", "ranks", "device", "kernels"],
)
def test_another_order_of_the_same_sums_loses_no_result(other: ComputeStatistics) -> None:
    assert arithmetic_of(PLAIN, "auto", 64) == arithmetic_of(other, "auto", 64)
