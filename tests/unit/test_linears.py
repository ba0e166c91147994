from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize

from flowforge.engine.cores import num_usable_cores
from flowforge.engine.models.linears import (
    ChosenLinear,
    LinearMaker,
    NativeKernels,
    NativeLinear,
    StoredMatrix,
    TorchLinear,
)
from flowforge.engine.native import library
from flowforge.engine.native.library import (
    WEIGHT_KINDS,
    LinearLibrary,
    PackedMatrix,
    find_library,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.native.library import WeightKind

# Products of 576 standard normal numbers are of the size 24; sums in another order differ by this.
TOLERANCE = 1e-4
ROWS_OUT, COLUMNS_IN = 131, 576  # no multiple of a tile; SmolLM2's width


@pytest.fixture(scope="module")
def kernels() -> LinearLibrary:
    found = find_library()
    if found is None:
        pytest.skip("there is no C compiler on this machine")
    return found


def stored(kind: WeightKind) -> tuple[StoredMatrix, torch.Tensor]:
    """A random matrix as a file has it, and the same in float32."""
    weight = torch.randn((ROWS_OUT, COLUMNS_IN), generator=torch.Generator().manual_seed(5))
    if kind == "float32":
        return StoredMatrix(kind, weight), weight
    if kind == "bfloat16":
        return StoredMatrix(kind, weight.bfloat16()), weight.bfloat16().float()
    gguf_type = gguf.GGMLQuantizationType[kind.upper()]
    groups = quantize(weight.numpy(), gguf_type)
    values = torch.from_numpy(dequantize(groups, gguf_type))
    return StoredMatrix(kind, torch.from_numpy(groups.copy())), values


def inputs(num_rows: int) -> torch.Tensor:
    return torch.randn((100, COLUMNS_IN), generator=torch.Generator().manual_seed(6))[:num_rows]


PACKED: tuple[WeightKind, ...] = ("q4_0", "q4_1", "q8_0")


def native(kernels: LinearLibrary, kind: WeightKind, *, rounds: bool = False) -> NativeLinear:
    return NativeLinear(kernels, stored(kind)[0], ROWS_OUT, None, rounds=rounds)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x as products in integers see it, in double precision."""
    groups = x.view(len(x), -1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    integers = (groups * (127 / groups.abs().amax(-1, keepdim=True))).nan_to_num().round()
    return (integers.double() * scale.double()).view(x.shape)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 48, 49, 100])
def test_the_kernels_multiply_with_the_very_numbers_that_are_stored(
    kernels: LinearLibrary, kind: WeightKind, num_rows: int
) -> None:
    x = inputs(num_rows)
    expected = (x.double() @ stored(kind)[1].double().T).float()

    found = native(kernels, kind)(x)

    assert (expected - found).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 64, 65, 100])
def test_products_of_integers_are_those_with_rounded_rows(
    kernels: LinearLibrary, kind: WeightKind, num_rows: int
) -> None:
    x = inputs(num_rows)
    x[0, :64] *= 1e4
    expected = rounded(x) @ stored(kind)[1].double().T

    found = native(kernels, kind, rounds=True)(x)

    sizes = expected.norm(dim=1)
    assert ((expected - found).norm(dim=1) / sizes).max().item() < 1e-6
    exact = native(kernels, kind)(x)
    assert 1e-4 < ((found - exact).norm(dim=1) / sizes).max().item() < 2e-2


@pytest.mark.parametrize("kind", PACKED)
def test_the_largest_integers_do_not_overflow(kernels: LinearLibrary, kind: WeightKind) -> None:
    size = {"q4_0": 18, "q4_1": 20, "q8_0": 34}[kind]
    groups = torch.full((16, 2, size), 0x80 if kind == "q8_0" else 0xFF, dtype=torch.uint8)
    groups[:, :, :2] = torch.tensor([0x00, 0x3C], dtype=torch.uint8)  # a scale of 1
    if kind == "q4_1":
        groups[:, :, 2:4] = 0
    of_all = {"q4_0": 7.0, "q4_1": 15.0, "q8_0": -128.0}[kind]
    x = torch.cat([torch.ones((1, 64)), -torch.ones((1, 64))])

    linear = NativeLinear(kernels, StoredMatrix(kind, groups), 16, None, rounds=True)

    expected = torch.tensor([[64 * of_all], [-64 * of_all]]).expand(2, 16)
    assert torch.allclose(expected, linear(x), rtol=1e-5)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so_when_it_is_rounded(
    kernels: LinearLibrary, kind: WeightKind, value: float
) -> None:
    x = inputs(3)
    x[1, 70] = value

    found = native(kernels, kind, rounds=True)(x)

    assert not found[1].isfinite().any()
    assert torch.equal(native(kernels, kind, rounds=True)(inputs(1)), found[:1])


def test_groups_of_zeros_and_of_tiny_numbers_count_nothing(kernels: LinearLibrary) -> None:
    x = torch.zeros((2, COLUMNS_IN))
    x[1] = 1e-42

    found = native(kernels, "q4_1", rounds=True)(x)

    assert found.abs().max().item() < 1e-35


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_a_row_has_the_same_bits_in_every_batch(
    kernels: LinearLibrary, kind: WeightKind, rounds: bool
) -> None:
    if rounds and kind not in PACKED:
        pytest.skip("only packed weights are multiplied in integers")
    x = inputs(100)
    linear = native(kernels, kind, rounds=rounds)
    alone = torch.cat([linear(row[None]) for row in x])

    for num_rows in (2, 3, 4, 5, 6, 7, 13, 47, 48, 51, 100):
        for start in (0, 1, 100 - num_rows):
            batch = slice(start, start + num_rows)
            assert torch.equal(alone[batch], linear(x[batch]))


@pytest.mark.parametrize("rounds", [False, True])
def test_a_row_has_the_same_bits_with_every_number_of_threads(
    kernels: LinearLibrary, rounds: bool
) -> None:
    x, linear = inputs(7), native(kernels, "q4_1", rounds=rounds)
    expected = linear(x)
    before = torch.get_num_threads()
    try:
        for threads in (2, 3, 5):
            torch.set_num_threads(threads)
            assert torch.equal(expected, linear(x))
    finally:
        torch.set_num_threads(before)


def test_a_product_of_no_rows_is_empty(kernels: LinearLibrary) -> None:
    assert (0, ROWS_OUT) == native(kernels, "q4_0")(inputs(0)).shape


def test_a_bias_is_added(kernels: LinearLibrary) -> None:
    bias = torch.arange(float(ROWS_OUT))
    matrix, weight = stored("q8_0")
    expected = torch.nn.functional.linear(inputs(3), weight, bias)

    found = NativeLinear(kernels, matrix, ROWS_OUT, bias)(inputs(3))

    assert (expected - found).abs().max().item() < TOLERANCE


# --- who computes what -------------------------------------------------------------------------


def test_torch_computes_what_has_more_rows_than_were_chosen(kernels: LinearLibrary) -> None:
    maker = LinearMaker("measured", NativeKernels(kernels))
    weight = torch.randn((128, 576), generator=torch.Generator().manual_seed(1))
    linear = maker.make(weight, None)
    x = inputs(9)
    (choice,) = maker.choices
    choice.most_rows = 8

    assert isinstance(linear, ChosenLinear)
    assert torch.equal(linear.few(x[:8]), linear(x[:8]))
    assert torch.equal(torch.nn.functional.linear(x, weight), linear(x))


@pytest.mark.parametrize(
    "weight",
    [torch.zeros((4096, 48)), torch.zeros((2048, 64), dtype=torch.bfloat16)],
    ids=["columns", "dtype"],
)
def test_what_the_kernels_cannot_do_is_torchs_or_refused(
    kernels: LinearLibrary, weight: torch.Tensor
) -> None:
    maker = LinearMaker("measured", NativeKernels(kernels))

    with pytest.raises(EngineError, match="cannot be multiplied deterministically") as caught:
        LinearMaker("always", NativeKernels(kernels)).make(weight, None)

    assert "EN234" == caught.value.code
    assert isinstance(maker.make(weight, None), TorchLinear)
    assert [] == maker.choices


# --- the compiler ------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "", "'cc"])
def test_without_a_compiler_there_are_no_kernels_and_it_is_said(
    compiler: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FLOWFORGE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)

    with caplog.at_level(logging.INFO):
        assert library.find_library.__wrapped__() is None

    assert ["no compiled kernels"] == [
        record.getMessage().partition(":")[0] for record in caplog.records
    ]


def test_kernels_that_compute_something_else_are_not_used(
    kernels: LinearLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = LinearLibrary.linear

    def wrong(self: LinearLibrary, matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
        return real(self, matrix, x) * 1.01

    monkeypatch.setattr(LinearLibrary, "linear", wrong)

    assert library.find_library.__wrapped__() is None
    assert ["not used"] == [record.getMessage()[-8:] for record in caplog.records]
    assert kernels.path.is_file()


# --- cores -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("granted", "most"),
    [("50000 100000", 1), ("100000 100000", 1), ("max 100000", None), ("oops", None)],
)
def test_a_control_group_limits_the_threads(granted: str, most: int | None, tmp_path: Path) -> None:
    without = num_usable_cores(tmp_path)
    (tmp_path / "cpu.max").write_text(granted, encoding="ascii")

    assert (most or without) == num_usable_cores(tmp_path)
