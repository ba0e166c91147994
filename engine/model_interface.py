"""What the engine's core needs of a model: a runner of step plans, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.row_draw import DrawnToken, LogitsRow, RowDraw
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.step_plan import StepPlan


class StepRunner(Protocol):
    """Carries out the core's plans; `ModelRunner` does it on a decoder."""

    @property
    def num_rows_read(self) -> int:
        """KV rows that were read in one layer since the start; see `ReadStatistics`."""
        ...

    @property
    def draws_tokens(self) -> bool:
        """Whether steps draw tokens where the logits are; else they come to the host."""
        ...

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Begin to carry out a plan, behind all that were launched before.

        May return before anything is computed. Rows are read and written through the paths as they
        are now. A chunk with a `feed` needs the last step's `draw` to have been called.
        """
        ...


class LaunchedStep(Protocol):
    """A step that is under way or over. Its logits go when it is dropped."""

    def draw(self, draws: Sequence[RowDraw], kept: Sequence[int] = ()) -> None:
        """Have tokens drawn, behind the forward pass; at most once, where `draws_tokens`.

        The place of a draw is what `Chunk.feed` names. kept: rows of logits behind chunks, in
        order, that will be asked for `on_host`.
        """
        ...

    def read(self) -> StepResult:
        """Wait for the step, and for what it drew. Raises what went wrong in it."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkLogits:
    """What a forward pass says about one chunk.

    behind: one row behind the chunk, if it was its sequence's last, and one behind each of its
    drafted tokens. scored: one for each of the chunk's `scored_rows`.
    """

    behind: tuple[LogitsRow, ...]
    scored: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """chunks: in the plan's order. drawn: what came of the draws, in theirs."""

    chunks: list[ChunkLogits]
    drawn: list[DrawnToken] = field(default_factory=list["DrawnToken"])


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """vocab_size: ids that may be sampled; rows above it are padding and never are.

    max_context_len: tokens of prompt and output together. eos_token_ids: any of them ends a text.
    """

    vocab_size: int
    max_context_len: int
    eos_token_ids: frozenset[int]
