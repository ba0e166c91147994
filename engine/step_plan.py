"""What a step computes: plain values that `Scheduler` decides. No torch, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.kv.moves import RowMove
    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.sharing import SharedRun
    from flowforge.engine.sequence import Flight, Sequence

# Stands in a batch for a token that the step before is drawing.
_NOT_KNOWN = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of a sequence are computed in this step.

    drafted: guesses of what follows them, computed as if they did; with the last chunk only. feed:
    the chunk is the one token that the step before is still drawing, at this place among its draws.
    """

    sequence: Sequence
    start: int
    stop: int
    drafted: tuple[int, ...] = ()
    feed: int | None = None

    @property
    def end(self) -> int:
        """Behind the last row that is computed."""
        return self.stop + len(self.drafted)

    @property
    def token_ids(self) -> list[int]:
        """The tokens whose rows are computed; any id where a token is not drawn yet."""
        if self.feed is not None:
            return [_NOT_KNOWN]
        return [*self.sequence.tokens[self.start : self.stop], *self.drafted]

    @property
    def is_last(self) -> bool:
        """Whether nothing of the sequence is left to compute, so its logits are wanted.

        As of the launch: later the sequence may have other tokens.
        """
        return self.stop >= len(self.sequence.tokens)

    @property
    def scored_rows(self) -> range:
        """Positions whose logits say how likely the next given token was; mostly none."""
        generation = self.sequence.generation
        if generation is None or generation.scoring is None:
            return range(0)
        first = max(self.start, generation.scoring.first_row)
        return range(first, min(self.stop, generation.prompt_len - 1))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """moves, in order, then one forward pass over all chunks; then `ready` sample without one.

    shared: the pages that several chunks read; readers are indices of chunks. flights: of the
    chunks' sequences, then of the ready ones. restored: pages that the moves bring back.
    """

    moves: tuple[RowMove, ...]
    chunks: tuple[Chunk, ...]
    ready: tuple[Sequence, ...]
    shared: tuple[SharedRun, ...] = ()
    flights: tuple[Flight, ...] = ()
    restored: tuple[Node, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.chunks or self.ready or self.moves)

    @property
    def sequences(self) -> list[Sequence]:
        """Those of the chunks, then the ready ones."""
        return [*(chunk.sequence for chunk in self.chunks), *self.ready]

    def live(self) -> list[bool]:
        """For each of `sequences`, whether it still waits for what this step says of it."""
        return [
            sequence.flight is flight
            for sequence, flight in zip(self.sequences, self.flights, strict=True)
        ]


@dataclass(slots=True)
class PlanDraft:
    """A plan in the making. budget: rows that are left."""

    budget: int
    moves: list[RowMove] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    ready: list[Sequence] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Compute a chunk, for which there is room."""
        self.budget -= chunk.end - chunk.start
        self.chunks.append(chunk)

    def add_next(self, sequence: Sequence) -> None:
        """Compute as much of a sequence as there is room for."""
        start = sequence.num_launched
        self.add(Chunk(sequence, start, min(len(sequence.tokens), start + self.budget)))

    def remove(self, sequence: Sequence) -> None:
        """Leave a sequence out of this step."""
        if sequence in self.ready:
            self.ready.remove(sequence)
        for chunk in self.chunks:
            if chunk.sequence is sequence:
                self.budget += chunk.end - chunk.start
                self.chunks.remove(chunk)
                return
