"""A checkpoint as one rank sees it: each tensor is that rank's part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flowforge.engine.models.checkpoint import Checkpoint
from flowforge.engine.models.quantized import GROUP_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.parallel.split import ModelPart

_BY_VOCABULARY = ("embed_tokens", "lm_head")
_GATES_AND_UPS = ("gate_proj", "up_proj", "w1", "w3")
_DOWNS = ("down_proj", "w2")


@dataclass(frozen=True, slots=True)
class _Cut:
    """What is kept of a tensor: ranges along one axis. is_once: only the first rank has it."""

    axis: int
    ranges: tuple[range, ...]
    is_once: bool = False


class CheckpointPart(Checkpoint):
    """The tensors of a whole checkpoint, cut. is_grouped: columns are groups of `GROUP_SIZE`.

    Parts of rows are views of the files where that can be, parts of columns are copies. A bias
    behind a product that all ranks add up is the first rank's; the others have zeros.
    """

    def __init__(
        self, whole: Checkpoint, config: ModelConfig, part: ModelPart, *, is_grouped: bool = False
    ) -> None:
        """config: of the whole model."""
        super().__init__(whole.directory, whole.tensors)
        self._config = config
        self._part = part
        self._group = GROUP_SIZE if is_grouped else 1

    def __contains__(self, name: str) -> bool:
        """Whether the rank's part of a tensor can be had: groups cannot be cut."""
        if name not in self.tensors:
            return False
        cut = self._cut(name)
        if cut is None or cut.axis == 0 or self._group == 1:
            return True
        return all(
            one.start % self._group == 0 and one.stop % self._group == 0 for one in cut.ranges
        )

    @property
    def num_values(self) -> int:
        """Numbers in all parts together."""
        return sum(math.prod(self.shape(name)) for name in self.tensors if name in self)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a part. Raises EngineError EN123."""
        shape = super().shape(name)
        cut = self._cut(name)
        if cut is None or cut.is_once:
            return shape
        size = sum(map(len, cut.ranges))
        if cut.axis == 0:
            return (size, *shape[1:])
        return (shape[0], size // self._group, *shape[2:])

    def tensor(self, name: str) -> torch.Tensor:
        """A part. Raises EngineError EN123."""
        whole = super().tensor(name)
        cut = self._cut(name)
        if cut is None:
            return whole
        if cut.is_once:
            return whole if self._part.rank.is_first else torch.zeros_like(whole)
        step = 1 if cut.axis == 0 else self._group
        pieces = [whole.narrow(cut.axis, one.start // step, len(one) // step) for one in cut.ranges]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, cut.axis)).contiguous()

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        """Parts joined along their rows; a view only where nothing is cut."""
        if all(self._cut(name) is None for name in names):
            return super().stacked(names)
        parts = [self.tensor(name) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _cut(self, name: str) -> _Cut | None:
        """By what a matrix is called; None for what every rank has whole: norms and routers."""
        module, _, kind = name.rpartition(".")
        matrix = module.rpartition(".")[2]
        part, config = self._part, self._config
        head_dim = config.head_dim
        q, kv = _scaled(part.heads, head_dim), _scaled(part.kv_heads, head_dim)
        inner = part.experts if ".experts." in name else part.mlp
        if matrix in _BY_VOCABULARY:
            return _Cut(0, (part.vocabulary,))
        if matrix == "q_proj":
            return _Cut(0, (q,))
        if matrix in ("k_proj", "v_proj"):
            return _Cut(0, (kv,))
        if matrix == "qkv_proj":
            k_start = config.num_heads * head_dim
            v_start = k_start + config.num_kv_heads * head_dim
            return _Cut(0, (q, _moved(kv, k_start), _moved(kv, v_start)))
        if matrix in _GATES_AND_UPS:
            return _Cut(0, (inner,))
        if matrix == "gate_up_proj":
            return _Cut(0, (inner, _moved(inner, config.intermediate_size)))
        if matrix == "o_proj" or matrix in _DOWNS:
            columns = q if matrix == "o_proj" else inner
            return _Cut(1, (columns,)) if kind == "weight" else _Cut(0, (), is_once=True)
        return None


def _scaled(indices: range, size: int) -> range:
    return range(indices.start * size, indices.stop * size)


def _moved(indices: range, by: int) -> range:
    return range(indices.start + by, indices.stop + by)
