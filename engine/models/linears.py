"""Matrix products of a model: which kernel computes one, by the number of its rows.

A step of few rows is as quick as its weights are read, one of many as the processor multiplies. So
a matrix may have two forms: as it is stored, for the engine's own kernels, and as torch wants it.
Both give the product with the same numbers; sums are in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import torch
import torch.nn.functional as F

from flowforge.engine.kernels.presence import has_float8_kernels, has_kernels
from flowforge.engine.models.packed import UnpackedLinear
from flowforge.engine.models.quantized import GROUP_BYTES, GROUP_SIZE
from flowforge.engine.native.library import find_library
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.engine.models.packed import PackedKind, PackedMatrix
    from flowforge.engine.native.library import LinearLibrary, WeightKind

    Linear: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
    """From [T, columns in] to [T, rows out], in one dtype."""

KernelUse: TypeAlias = Literal["never", "measured", "always", "rounded", "packed", "float8"]
"""When products are left to the engine's own kernels.

measured: for as many rows as that is quicker. always: every row has the same bits in every batch.
rounded: as always where they know a matrix; weights of four and eight bits are multiplied in
integers, with rows that are rounded to 8 bits.
packed, float8: as measured, but matrices are kept in few bits alone, as the files have them or all
rounded to float8, and are unpacked for products of more rows.
"""

ALL_ROWS = 1 << 30
"""A limit that no step reaches."""

# Smaller matrices are read in less time than a call takes: nothing to gain, and nothing to measure.
_LEAST_VALUES = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix [rows out, columns in] as a file has it; see `WeightKind`."""

    kind: WeightKind
    weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """What the choice of a kernel depends on."""

    kind: WeightKind | PackedKind
    num_rows_out: int
    num_columns_in: int


@dataclass(slots=True)
class KernelChoice:
    """Up to how many rows matrices of one shape are left to the engine's kernels."""

    shape: MatrixShape
    most_rows: int = 0


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """By torch; weight: [rows out, columns in], bias: [rows out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.weight.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return F.linear(x, self.weight, self.bias)


class NativeLinear:
    """By the engine's kernels, from weights as they are stored."""

    __slots__ = ("_library", "matrix")

    def __init__(
        self,
        library: LinearLibrary,
        stored: StoredMatrix,
        num_rows_out: int,
        bias: torch.Tensor | None,
        *,
        rounds: bool = False,
    ) -> None:
        """rounds: as in `LinearLibrary.pack`."""
        self._library = library
        self.matrix = library.pack(stored.kind, stored.weight, num_rows_out, bias, rounds=rounds)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`; float32."""
        return self._library.linear(self.matrix, x.contiguous())


@dataclass(frozen=True, slots=True)
class JoinedLinear:
    """Products with several matrices that read the same input, side by side."""

    parts: tuple[Linear, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


@dataclass(frozen=True, slots=True)
class ChosenLinear:
    """By the engine's kernels for few rows, by torch for more."""

    few: Linear
    many: TorchLinear | UnpackedLinear
    choice: KernelChoice

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self.few(x) if x.shape[0] <= self.choice.most_rows else self.many(x)


def most_native_rows(linear: Linear) -> int:
    """Up to how many rows a product is left to the engine's kernels."""
    if isinstance(linear, ChosenLinear):
        return linear.choice.most_rows
    return ALL_ROWS if isinstance(linear, NativeLinear) else 0


class ProductKernels(Protocol):
    """Kernels that multiply few rows with weights as they are stored."""

    @property
    def most_rows(self) -> int:
        """That they are for; more is never asked of them."""
        ...

    @property
    def choices_file(self) -> Path:
        """Where is kept up to how many rows they were quicker here; in a folder that is there."""
        ...

    def stored(
        self, weight: torch.Tensor, bias: torch.Tensor | None, stored: StoredMatrix | None
    ) -> tuple[Linear, StoredMatrix] | None:
        """The product with a matrix, and the form that is read; None for what they do not know.

        weight: [rows out, columns in] on the device. stored: the same numbers as a file has them.
        """
        ...

    def packed(self, matrix: PackedMatrix, bias: torch.Tensor | None) -> Linear | None:
        """The product with a packed matrix; None for what they do not know."""
        ...


class NativeKernels:
    """The CPU's; satisfies `ProductKernels`. Any number of rows is theirs."""

    def __init__(self, library: LinearLibrary, *, rounds: bool = False) -> None:
        """rounds: packed weights are multiplied in integers, see `LinearLibrary.pack`."""
        self._library = library
        self._rounds = rounds

    @property
    def most_rows(self) -> int:
        """See `ProductKernels.most_rows`."""
        return ALL_ROWS

    @property
    def choices_file(self) -> Path:
        """See `ProductKernels.choices_file`."""
        path, threads = self._library.path, torch.get_num_threads()
        return path.with_name(f"{path.stem}-{torch.__version__}-{threads}.json")

    def stored(
        self, weight: torch.Tensor, bias: torch.Tensor | None, stored: StoredMatrix | None
    ) -> tuple[Linear, StoredMatrix] | None:
        """See `ProductKernels.stored`."""
        num_rows_out, num_columns_in = weight.shape
        if num_columns_in % GROUP_SIZE or weight.dtype != torch.float32:
            return None
        form = StoredMatrix("float32", weight.contiguous()) if stored is None else stored
        rounds = self._rounds and form.kind in GROUP_BYTES
        return NativeLinear(self._library, form, num_rows_out, bias, rounds=rounds), form

    def packed(self, matrix: PackedMatrix, bias: torch.Tensor | None) -> None:
        """See `ProductKernels.packed`: they have forms of their own."""
        return


def find_kernels(
    device: torch.device, use: KernelUse = "measured", dtype: torch.dtype = torch.float32
) -> ProductKernels | None:
    """The kernels for weights on a device; None where there are none, which is logged.

    dtype: of activations.
    """
    if use == "never":
        return None
    if device.type == "cpu" and dtype == torch.bfloat16:
        from flowforge.engine.models.prepacked import PrepackedKernels, can_prepack

        return PrepackedKernels() if can_prepack(dtype) else None
    if device.type == "cpu":
        library = find_library()
        return None if library is None else NativeKernels(library, rounds=use == "rounded")
    if not (has_float8_kernels(device) if use == "float8" else has_kernels(device)):
        return None
    from flowforge.engine.kernels.product_kernels import PackedKernels

    return PackedKernels(device)


@dataclass(slots=True)
class LinearMaker:
    """Makes the products of one model, and knows what is to be chosen for them.

    use: "measured" takes torch until `choices` say more. dtype: of activations. made: those with a
    choice, by shape.
    """

    use: KernelUse
    kernels: ProductKernels | None
    dtype: torch.dtype = torch.float32
    made: dict[MatrixShape, list[ChosenLinear]] = field(
        default_factory=dict["MatrixShape", "list[ChosenLinear]"]
    )

    @property
    def choices(self) -> list[KernelChoice]:
        """One for each shape."""
        return [linears[0].choice for linears in self.made.values()]

    def make(
        self, weight: torch.Tensor, bias: torch.Tensor | None, stored: StoredMatrix | None = None
    ) -> Linear:
        """The product with a matrix.

        weight: as torch wants it, [rows out, columns in]. stored: the same numbers as a file has
        them; None: weight itself. Raises EngineError EN234 where the kernels cannot do what they
        always are to do.
        """
        dense = TorchLinear(weight, bias)
        has_no_choice = self.use in ("always", "rounded")
        is_large = weight.numel() >= _LEAST_VALUES or has_no_choice
        found = self.kernels.stored(weight, bias, stored) if self.kernels and is_large else None
        if self.use == "always" and found is None:
            raise EngineError(
                "EN234",
                f"a matrix of {weight.shape[1]} columns in {weight.dtype} cannot be multiplied "
                f"deterministically, only float32 with a multiple of {GROUP_SIZE} columns, "
                "by compiled kernels",
                help="leave is_deterministic out",
            )
        if found is None:
            return dense
        few, form = found
        if has_no_choice:
            return few
        return self._chosen(few, dense, MatrixShape(form.kind, *weight.shape))

    def pack(self, matrix: PackedMatrix, bias: torch.Tensor | None) -> Linear:
        """The product with a matrix that is kept in few bits alone."""
        many = UnpackedLinear(matrix, bias)
        few = None if self.kernels is None else self.kernels.packed(matrix, bias)
        if few is None:
            return many
        return self._chosen(few, many, MatrixShape(matrix.kind, *matrix.shape))

    def _chosen(
        self, few: Linear, many: TorchLinear | UnpackedLinear, shape: MatrixShape
    ) -> ChosenLinear:
        others = self.made.setdefault(shape, [])
        choice = others[0].choice if others else KernelChoice(shape)
        others.append(ChosenLinear(few, many, choice))
        return others[-1]
