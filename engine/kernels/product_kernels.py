"""The GPU's kernels for weights of few bits, as a model's matrices are made with them."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import triton

from flowforge.engine.kernels import linears
from flowforge.engine.kernels.linears import MOST_ROWS, PackedLinear
from flowforge.engine.model_store.store import store_root
from flowforge.engine.models.packed import pack_groups

if TYPE_CHECKING:
    from flowforge.engine.models.linears import StoredMatrix
    from flowforge.engine.models.packed import PackedMatrix


class PackedKernels:
    """Satisfies `ProductKernels`. device: where the weights are."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def most_rows(self) -> int:
        """See `ProductKernels.most_rows`."""
        return MOST_ROWS

    @property
    def choices_file(self) -> Path:
        """See `ProductKernels.choices_file`."""
        is_cuda = self._device.type == "cuda"
        name = torch.cuda.get_device_name(self._device) if is_cuda else "interpreted"
        source = Path(linears.__file__).read_bytes()
        key = blake2b(source + triton.__version__.encode(), digest_size=8).hexdigest()
        folder = store_root() / "native"
        folder.mkdir(parents=True, exist_ok=True)
        card = re.sub(r"[^A-Za-z0-9]+", "-", name)
        return folder / f"products-{card}-{key}-{torch.__version__}.json"

    def stored(
        self, weight: torch.Tensor, bias: torch.Tensor | None, stored: StoredMatrix | None
    ) -> tuple[PackedLinear, StoredMatrix] | None:
        """See `ProductKernels.stored`."""
        if stored is None:
            return None
        # Written so that the type of the kind is narrowed.
        kind = stored.kind
        if kind == "float32" or kind == "bfloat16":
            return None
        return PackedLinear(pack_groups(kind, stored.weight.to(weight.device)), bias), stored

    def packed(self, matrix: PackedMatrix, bias: torch.Tensor | None) -> PackedLinear:
        """See `ProductKernels.packed`."""
        return PackedLinear(matrix, bias)
