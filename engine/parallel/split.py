"""Which part of a model each rank has: decided from its configuration alone. Imports no torch.

Parts need not be equal: a model of 9 heads runs on 2 ranks as 6 and 3. KV heads go with the query
heads that read them; where there are fewer KV heads than ranks, several ranks keep the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.models.config import ModelConfig

# Of inner dimensions, the widest that leaves every rank a part: groups of stored weights have 32
# columns, and grouped products read rows of 8 values.
_UNITS = (32, 16, 8)


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `count` processes; the first has index 0 and runs the engine."""

    index: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether it is the one that runs the engine."""
        return self.index == 0


@dataclass(frozen=True, slots=True)
class ModelPart:
    """What one rank computes of a model.

    config: of a decoder that does only this. The ranges are of the whole model's query heads, KV
    heads, columns of an MLP, columns of each expert (empty without experts), and ids.
    """

    rank: Rank
    config: ModelConfig
    heads: range
    kv_heads: range
    mlp: range
    experts: range
    vocabulary: range


def part_of(total: int, rank: Rank, unit: int = 1) -> range:
    """A rank's share of `total` things, in whole units and as even as can be; the first have more.

    unit: divides total.
    """
    share, more = divmod(total // unit, rank.count)
    start = rank.index * share + min(rank.index, more)
    stop = start + share + (rank.index < more)
    return range(start * unit, stop * unit)


def split_model(config: ModelConfig, rank: Rank) -> ModelPart:
    """A rank's part. Raises EngineError EN236 for a model with too little to go round."""
    for name, size in _sizes(config).items():
        if size < rank.count:
            raise EngineError(
                "EN236",
                f"tp is {rank.count}, and the model has only {size} {name} to split",
                help=f"set tp to at most {min(_sizes(config).values())}",
            )
    heads, kv_heads = _heads(config, rank)
    mlp = part_of(config.intermediate_size, rank, _unit(config.intermediate_size, rank.count))
    experts, of_experts = range(0), None
    if config.experts is not None:
        size = config.experts.intermediate_size
        experts = part_of(size, rank, _unit(size, rank.count))
        of_experts = replace(config.experts, intermediate_size=len(experts))
    part = replace(
        config,
        num_heads=len(heads),
        num_kv_heads=len(kv_heads),
        intermediate_size=len(mlp),
        experts=of_experts,
    )
    return ModelPart(rank, part, heads, kv_heads, mlp, experts, part_of(config.vocab_size, rank))


def _sizes(config: ModelConfig) -> dict[str, int]:
    """How many pieces of each kind there are to give."""
    sizes = {"attention heads": config.num_heads, "ids": config.vocab_size}
    if any(not layer.has_experts for layer in config.layers):
        sizes["columns of an MLP"] = config.intermediate_size
    if config.experts is not None:
        sizes["times 8 columns of an expert"] = config.experts.intermediate_size // _UNITS[-1]
    return sizes


def _unit(size: int, count: int) -> int:
    return next((unit for unit in _UNITS if size % unit == 0 and size // unit >= count), 1)


def _heads(config: ModelConfig, rank: Rank) -> tuple[range, range]:
    """Query heads, and the KV heads that they read: all of one rank have equally many readers."""
    group = config.num_heads // config.num_kv_heads
    if config.num_kv_heads >= rank.count:
        kv_heads = part_of(config.num_kv_heads, rank)
        return range(kv_heads.start * group, kv_heads.stop * group), kv_heads
    # Several ranks to a KV head: they share out its readers.
    for kv_head in range(config.num_kv_heads):
        ranks = part_of(rank.count, Rank(kv_head, config.num_kv_heads))
        if rank.index in ranks:
            within = part_of(group, Rank(rank.index - ranks.start, len(ranks)))
            start = kv_head * group
            return range(start + within.start, start + within.stop), range(kv_head, kv_head + 1)
    raise AssertionError("every rank has a KV head")
