"""One rank's decoder and KV rows, the same for the first rank and for workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.models.checkpoint import CheckpointCut
from flowforge.engine.models.weights import load_weights
from flowforge.engine.parallel.checkpoint_part import CheckpointPart
from flowforge.engine.parallel.decoder import SplitDecoder
from flowforge.engine.parallel.split import Rank, part_of, split_model

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from flowforge.engine.models.checkpoint import Checkpoint
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import KernelUse
    from flowforge.engine.models.weights import LoadedWeights
    from flowforge.engine.parallel.decoder import Ranks
    from flowforge.engine.parallel.split import ModelPart


@dataclass(frozen=True, slots=True)
class PartLoading:
    """How one rank loads its part. config: of the whole model."""

    directory: Path
    config: ModelConfig
    rank: Rank

    @property
    def part(self) -> ModelPart:
        """Raises EngineError EN236."""
        return split_model(self.config, self.rank)

    @property
    def cut(self) -> CheckpointCut:
        """What the rank has of a checkpoint. Raises EngineError EN236."""
        part = self.part

        def cut(whole: Checkpoint, is_grouped: bool) -> Checkpoint:
            return CheckpointPart(whole, self.config, part, is_grouped=is_grouped)

        return CheckpointCut(part.config, cut)

    def load(
        self,
        dtype: torch.dtype,
        device: str,
        kernels: KernelUse,
        kernel_rows: int | None = None,
    ) -> LoadedWeights:
        """The part's weights. Raises as `load_decoder`, and EngineError EN236."""
        return load_weights(
            self.directory,
            self.config,
            dtype=dtype,
            device=device,
            kernels=kernels,
            kernel_rows=kernel_rows,
            part=self.cut,
        )

    def decoder(self, loaded: LoadedWeights, ranks: Ranks) -> SplitDecoder:
        """The decoder of loaded weights, once the ranks have met."""
        every = (Rank(index, self.rank.count) for index in range(self.rank.count))
        sizes = tuple(len(part_of(self.config.vocab_size, rank)) for rank in every)
        return SplitDecoder(self.part, loaded.weights, ranks, sizes, loaded.kernel_choices)
