"""Tensors of a checkpoint, and products with them, in the dtype and on the device they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flowforge.engine.models.linears import StoredMatrix
from flowforge.engine.models.quantized import KIND_OF_BYTES, QUANTIZED_FILE
from flowforge.engine.native.library import GROUP_SIZE
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.models.checkpoint import Checkpoint
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import Linear, LinearMaker


class TensorSource:
    """Tensors of a checkpoint in the dtype and on the device they will run in."""

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
        return self._linear(full_names, self.stacked(prefix, names), bias)

    def lm_head(self, name: str, weight: torch.Tensor) -> Linear:
        """The product with one matrix that is there already."""
        return self._linear([name], weight, None)

    def _linear(
        self, names: Sequence[str], weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Linear:
        return self._maker.make(weight, bias, self._stored(names))

    def _stored(self, names: Sequence[str]) -> StoredMatrix | None:
        """What the kernels read instead of float32, if the files have it."""
        if self._maker.use == "never":
            return None
        quantized = self._quantized
        if quantized is not None and all(name in quantized for name in names):
            sizes = {self._group_bytes(quantized, name) for name in names}
            if len(sizes) == 1:
                return StoredMatrix(KIND_OF_BYTES[sizes.pop()], quantized.stacked(names))
        if self._checkpoint.dtypes(names) == {torch.bfloat16}:
            return StoredMatrix("bfloat16", self._checkpoint.stacked(names))
        return None

    def refuse_to_be_deterministic(self, what: str) -> None:
        """Raise EngineError EN234 where the kernels are to do all and cannot do this."""
        if self._maker.use == "always":
            raise EngineError(
                "EN234",
                f"{what} cannot be computed deterministically",
                help="leave is_deterministic out",
            )

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
