"""Products with packed matrices by the Triton kernel against plain torch."""

from __future__ import annotations

from typing import Literal

import gguf
import pytest
import torch
from kernel_heads import on_the_cpu

from flowforge.engine.kernels import linears
from flowforge.engine.kernels.checks import (
    TOLERANCES,
    linear_error,
    random_matrix,
    relative_error,
)
from flowforge.engine.models.packed import UnpackedLinear, pack_float8, pack_groups
from flowforge.engine.models.quantized import GROUP_BYTES

pytestmark = on_the_cpu

KINDS: tuple[Literal["q4_0", "q4_1", "q8_0"], ...] = ("q4_0", "q4_1", "q8_0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [*KINDS, "float8"])
@pytest.mark.parametrize(("num_rows", "shape"), [(1, (16, 32)), (17, (37, 96)), (3, (5, 1056))])
def test_products_equal_the_reference(
    kind: Literal["q4_0", "q4_1", "q8_0", "float8"],
    num_rows: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    matrix = random_matrix(kind, *shape, "cpu")

    assert shape == matrix.shape
    assert TOLERANCES[dtype] > linear_error(matrix, num_rows, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_groups_are_the_numbers_of_the_file(
    kind: Literal["q4_0", "q4_1", "q8_0"],
) -> None:
    generator = torch.Generator().manual_seed(4)
    size, num_numbers = GROUP_BYTES[kind], 2 if kind == "q4_1" else 1
    stored = torch.randint(0, 256, (9, 3, size), dtype=torch.uint8, generator=generator)
    numbers = torch.rand((9, 3, num_numbers), generator=generator).to(torch.float16)
    stored[..., : 2 * num_numbers] = numbers.view(torch.uint8)

    expected = gguf.quants.dequantize(
        stored.view(9, -1).numpy(), gguf.GGMLQuantizationType[kind.upper()]
    )

    found = pack_groups(kind, stored).unpacked(torch.float32)
    assert torch.equal(torch.from_numpy(expected), found)


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    matrix = random_matrix("q4_1", 20, 1056, "cpu")
    x = torch.randn((7, 1056), generator=torch.Generator().manual_seed(2))

    together = linears.packed_linear(x, matrix)

    assert torch.equal(together[3:4], linears.packed_linear(x[3:4], matrix))


def test_matrices_are_unpacked_for_many_rows_and_biases_are_added() -> None:
    matrix = random_matrix("q4_0", 16, 64, "cpu")
    bias = torch.arange(16, dtype=torch.float32)
    x = torch.randn((65, 64), generator=torch.Generator().manual_seed(2))

    expected = x @ matrix.unpacked(torch.float32).T + bias

    assert relative_error(UnpackedLinear(matrix, bias)(x), expected) < 1e-5
    assert relative_error(linears.PackedLinear(matrix, bias)(x), expected) < 1e-5


def test_float8_rows_are_rounded_each_to_its_own_scale() -> None:
    weight = torch.tensor([[448.0, 1.0, 0.0] + [0.0] * 29, [1e-3, 1e-3, -1e-3] + [0.0] * 29])

    packed = pack_float8(weight)

    torch.testing.assert_close(packed.unpacked(torch.float32), weight)
    assert (pack_float8(torch.zeros((2, 32))).unpacked(torch.float32) == 0).all()
