"""Products in bfloat16 on CPUs that have it, from weights that oneDNN has laid out once.

torch's own linear lays a matrix out anew in every call, which for a few rows takes longer than the
product. Inductor (torch.compile) packs ahead through the same two operators.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from flowforge.engine.model_store.store import store_root
from flowforge.engine.models.linears import ALL_ROWS, StoredMatrix
from flowforge.engine.processor import find_processor

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.models.linears import Linear
    from flowforge.engine.models.packed import PackedMatrix

_logger = logging.getLogger(__name__)

# Rows for which oneDNN lays a matrix out; others are multiplied from the same layout.
_USUAL_ROWS = 16


class PrepackedLinear:
    """Of a copy of weight [rows out, columns in]; bias: [rows out]."""

    __slots__ = ("_bias", "_packed")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_ROWS)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return product


class PrepackedKernels:
    """oneDNN's; satisfies `ProductKernels`. Any number of rows is theirs."""

    @property
    def most_rows(self) -> int:
        """See `ProductKernels.most_rows`."""
        return ALL_ROWS

    @property
    def choices_file(self) -> Path:
        """See `ProductKernels.choices_file`."""
        key = hashlib.sha256(find_processor().key.encode()).hexdigest()[:16]
        folder = store_root() / "native"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"prepacked-{key}-{torch.__version__}-{torch.get_num_threads()}.json"

    def stored(
        self, weight: torch.Tensor, bias: torch.Tensor | None, stored: StoredMatrix | None
    ) -> tuple[Linear, StoredMatrix] | None:
        """See `ProductKernels.stored`; other forms of the numbers are not read."""
        form = StoredMatrix("bfloat16", weight)
        return PrepackedLinear(weight, bias), form

    def packed(self, matrix: PackedMatrix, bias: torch.Tensor | None) -> None:
        """See `ProductKernels.packed`: they have one form."""
        return


@cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies in a dtype here, and computes what torch does.

    It is asked by trying, since its operators are no public interface of torch.
    """
    x, weight = torch.randn((3, 64), dtype=dtype), torch.randn((32, 64), dtype=dtype)
    try:
        found = PrepackedLinear(weight, None)(x)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        _logger.info("no prepacked products in %s: %s", dtype, str(error).partition("\n")[0])
        return False
    return torch.allclose(found.float(), F.linear(x, weight).float(), rtol=2e-2, atol=2e-2)
