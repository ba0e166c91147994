"""Matrix products of a model: which kernel computes one, by the number of its rows.

A step of few rows is as quick as its weights are read, one of many as the processor multiplies. So
a matrix may have two forms: as it is stored, for the engine's own kernels, and as torch wants it.
Both give the product with the same numbers; sums are in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.nn.functional as F

from flowforge.engine.models.quantized import GROUP_BYTES
from flowforge.engine.native.library import GROUP_SIZE, find_library
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.native.library import LinearLibrary, WeightKind

    Linear: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
    """From [T, columns in] to [T, rows out], in one dtype."""

KernelUse: TypeAlias = Literal["never", "measured", "always", "rounded"]
"""When products are left to the engine's own kernels. always: every row has the same bits in every
batch. rounded: as always where the kernels know a matrix; weights of four and eight bits are
multiplied in integers, with rows that are rounded to 8 bits."""

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

    kind: WeightKind
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
class ChosenLinear:
    """By the engine's kernels for few rows, by torch for more."""

    few: NativeLinear
    many: TorchLinear
    choice: KernelChoice

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self.few(x) if x.shape[0] <= self.choice.most_rows else self.many(x)


def most_native_rows(linear: Linear) -> int:
    """Up to how many rows a product is left to the engine's kernels."""
    if isinstance(linear, ChosenLinear):
        return linear.choice.most_rows
    return ALL_ROWS if isinstance(linear, NativeLinear) else 0


@dataclass(slots=True)
class LinearMaker:
    """Makes the products of one model, and knows what is to be chosen for them.

    use: "measured" takes torch until `choices` say more. made: those with a choice, by shape.
    """

    use: KernelUse
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
        library = find_library() if self.use != "never" else None
        num_rows_out, num_columns_in = weight.shape
        is_known = num_columns_in % GROUP_SIZE == 0 and weight.dtype == torch.float32
        if self.use == "always" and not (library and is_known):
            raise EngineError(
                "EN234",
                f"a matrix of {num_columns_in} columns in {weight.dtype} cannot be multiplied "
                f"deterministically, only float32 with a multiple of {GROUP_SIZE} columns, "
                "by compiled kernels",
                help="leave is_deterministic out",
            )
        is_large = weight.numel() >= _LEAST_VALUES or self.use in ("always", "rounded")
        if library is None or not (is_known and is_large):
            return dense
        stored = StoredMatrix("float32", weight.contiguous()) if stored is None else stored
        rounds = self.use == "rounded" and stored.kind in GROUP_BYTES
        native = NativeLinear(library, stored, num_rows_out, bias, rounds=rounds)
        if self.use in ("always", "rounded"):
            return native
        shape = MatrixShape(stored.kind, num_rows_out, num_columns_in)
        others = self.made.setdefault(shape, [])
        choice = others[0].choice if others else KernelChoice(shape)
        others.append(ChosenLinear(native, dense, choice))
        return others[-1]
