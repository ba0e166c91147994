"""A decoder that is one rank's part of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from flowforge.engine.models.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.models.decoder import DecoderWeights, MlpWeights
    from flowforge.engine.models.experts import ExpertWeights
    from flowforge.engine.models.linears import KernelChoice, Linear
    from flowforge.engine.parallel.split import ModelPart


class Ranks(Protocol):
    """What a part needs of the other parts; `RankGroup` has it."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See `RankGroup.sum`."""
        ...

    def gather(self, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor | None:
        """See `RankGroup.gather`."""
        ...


@dataclass(frozen=True, slots=True)
class SummedLinear:
    """A product with a part of the columns of a matrix: the ranks' results are added up."""

    own: Linear
    ranks: Ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self.ranks.sum(self.own(x))


@dataclass(frozen=True, slots=True)
class GatheredLinear:
    """A product with a part of the rows of a matrix. The first rank gets all, others their own.

    sizes: rows of each rank.
    """

    own: Linear
    ranks: Ranks
    sizes: tuple[int, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        found = self.own(x)
        gathered = self.ranks.gather(found, self.sizes)
        return found if gathered is None else gathered


class SplitDecoder(Decoder):
    """Computes its part of each layer, and with the other ranks the whole.

    Hidden states are the same on all ranks; logits are whole on the first only.
    """

    def __init__(
        self,
        part: ModelPart,
        weights: DecoderWeights,
        ranks: Ranks,
        vocabulary_sizes: tuple[int, ...],
        kernel_choices: Sequence[KernelChoice] = (),
    ) -> None:
        """weights: the part's; vocabulary_sizes: of all ranks."""
        layers = tuple(
            replace(layer, output=SummedLinear(layer.output, ranks)) for layer in weights.layers
        )
        lm_head = GatheredLinear(weights.lm_head, ranks, vocabulary_sizes)
        whole = replace(weights, layers=layers, lm_head=lm_head)
        super().__init__(part.config, whole, kernel_choices)
        self._ids = part.vocabulary
        self._ranks = ranks

    def _look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = token_ids - self._ids.start
        is_foreign = (rows < 0) | (rows >= len(self._ids))
        found = F.embedding(rows.masked_fill(is_foreign, 0), self._weights.embedding)
        # Of all ranks one has the row, so nothing is rounded.
        return self._ranks.sum(found.masked_fill(is_foreign.unsqueeze(-1), 0))

    def _mlp(self, mlp: MlpWeights | ExpertWeights, normed: torch.Tensor) -> torch.Tensor:
        return self._ranks.sum(super()._mlp(mlp, normed))
