"""Tensors of a checkpoint, and products with them, in the dtype and on the device they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flowforge.engine.models.linears import JoinedLinear, StoredMatrix, TorchLinear
from flowforge.engine.models.packed import PackedMatrix, pack_float8, pack_groups, stacked
from flowforge.engine.models.quantized import GROUP_SIZE, KIND_OF_BYTES, QUANTIZED_FILE
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.models.checkpoint import Checkpoint
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import Linear, LinearMaker


class TensorSource:
    """Tensors of a checkpoint on a device.

    quantized: the same matrices in groups, where the files have them. maker: of the products.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        quantized: Checkpoint | None,
        maker: LinearMaker,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._checkpoint = checkpoint
        self._quantized = quantized
        self._maker = maker
        self._dtype = dtype
        self._device = device

    def linear(self, prefix: str, names: Sequence[str], *, has_bias: bool = False) -> Linear:
        """The product with matrices on top of each other."""
        full_names = [f"{prefix}.{name}.weight" for name in names]
        bias = self.stacked(prefix, names, "bias") if has_bias else None
        if self._maker.use in ("packed", "float8"):
            return self._packed_linear(full_names, bias)
        return self._maker.make(self.stacked(prefix, names), bias, self._stored(full_names))

    def lm_head(self, name: str, weight: torch.Tensor | None = None) -> Linear:
        """The product with one matrix; weight: the same, if it is there already."""
        if self._maker.use in ("packed", "float8"):
            return self._packed_linear([name], None)
        weight = self.tensor(name) if weight is None else weight
        return self._maker.make(weight, None, self._stored([name]))

    def stacked(self, prefix: str, names: Sequence[str], kind: str = "weight") -> torch.Tensor:
        """Tensors of one module on top of each other; kind: weight or bias."""
        full_names = [f"{prefix}.{name}.{kind}" for name in names]
        return self._checkpoint.stacked(full_names).to(device=self._device, dtype=self._dtype)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor by its full name."""
        return self._checkpoint.tensor(name).to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, config: ModelConfig) -> torch.Tensor:
        """The weights of a norm, as factors."""
        if not config.family.has_gemma_numerics:
            return self.tensor(name)
        # Stored as the distance from 1, which bfloat16 would round away.
        return self._checkpoint.tensor(name).to(device=self._device, dtype=torch.float32) + 1

    def refuse_to_be_deterministic(self, what: str) -> None:
        """Raise EngineError EN234 where the kernels are to do all and cannot do this."""
        if self._maker.use == "always":
            raise EngineError(
                "EN234",
                f"{what} cannot be computed deterministically",
                help="leave is_deterministic out",
            )

    def _stored(self, names: Sequence[str]) -> StoredMatrix | None:
        """What the kernels read instead of float32, if the files have it."""
        if self._maker.kernels is None:
            return None
        quantized = self._quantized
        if quantized is not None and all(name in quantized for name in names):
            sizes = {self._group_bytes(quantized, name) for name in names}
            if len(sizes) == 1:
                return StoredMatrix(KIND_OF_BYTES[sizes.pop()], quantized.stacked(names))
        # On a GPU torch multiplies these as they are; none of its kernels is for them.
        is_read = self._device.type == "cpu"
        if is_read and self._checkpoint.dtypes(names) == {torch.bfloat16}:
            return StoredMatrix("bfloat16", self._checkpoint.stacked(names))
        return None

    def _packed_linear(self, names: Sequence[str], bias: torch.Tensor | None) -> Linear:
        """From few bits alone; as many matrices as have one kind are one product."""
        parts = [self._packed(name) for name in names]
        packed = [part for part in parts if isinstance(part, PackedMatrix)]
        if len(packed) == len(parts) and len({part.kind for part in packed}) == 1:
            return self._maker.pack(stacked(packed), bias)
        sizes = [part.shape[0] for part in parts]
        biases = [None] * len(parts) if bias is None else bias.split(sizes)
        linears = [
            self._maker.pack(part, of_part)
            if isinstance(part, PackedMatrix)
            else TorchLinear(part, of_part)
            for part, of_part in zip(parts, biases, strict=True)
        ]
        return linears[0] if len(linears) == 1 else JoinedLinear(tuple(linears))

    def _packed(self, name: str) -> PackedMatrix | torch.Tensor:
        """A matrix in few bits; as it is where the files have none for it."""
        if self._maker.use == "float8":
            return pack_float8(self._checkpoint.tensor(name).to(self._device))
        quantized = self._quantized
        if quantized is None or name not in quantized:
            return self.tensor(name)
        kind = KIND_OF_BYTES[self._group_bytes(quantized, name)]
        self._checkpoint.note_used(name)
        return pack_groups(kind, quantized.tensor(name).to(self._device))

    def _group_bytes(self, quantized: Checkpoint, name: str) -> int:
        num_rows, num_columns = self._checkpoint.shape(name)
        expected, found = (num_rows, num_columns // GROUP_SIZE), quantized.shape(name)
        if found[:2] != expected:
            raise EngineError(
                "EN113",
                f"{name!r} has {list(found[:2])} groups in {QUANTIZED_FILE!r}, "
                f"expected {list(expected)}",
                help="both weight files must be of one model: remove the folder and convert again",
            )
        return found[2]
