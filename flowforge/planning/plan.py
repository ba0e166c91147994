"""A plan: what a run of a program will cost, known before a token is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flowforge.planning.costs import Cost
    from flowforge.planning.quantity import Quantity

Fit = Literal["fits", "may not fit", "does not fit"]


@dataclass(frozen=True, slots=True)
class PlannedGeneration:
    """What one step makes the model do.

    path: of the step, as events name it. num_samples: prompts of it. prompt: tokens of one.
    prefilled, reused, generated: of all samples. continues: whose conversation it goes on with.
    reused_from: the step that computed the last of what is reused. sequence: tokens that the
    context must hold. pages: KV pages that it holds beside those of `continues`.
    is_certain: False where the step may not run, or may run a further time.
    model: None for the run's own. context_len: tokens that one sequence can have on it.
    """

    path: str
    num_samples: int
    prompt: Quantity
    prefilled: Quantity
    reused: Quantity
    generated: Quantity
    continues: str | None
    reused_from: str | None
    sequence: Quantity
    pages: Quantity
    is_certain: bool
    model: str | None
    context_len: int

    @property
    def fit(self) -> Fit:
        """Whether the prompt fits the context together with its answer."""
        if self.sequence.least > self.context_len:
            return "does not fit"
        return "may not fit" if self.sequence.may_exceed(self.context_len) else "fits"


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """A step takes what models wrote as text, so it is computed again.

    origins: paths of the steps that wrote it. Their KV stands behind other prefixes: only a
    conversation that is continued brings its KV along.
    """

    path: str
    origins: tuple[str, ...]
    tokens: Quantity


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will cost.

    generations: in an order in which they can run. problems: what would fail, if it came to it.
    context_len: of the run's own model. num_pages: KV pages there are, None where that is not
    known.
    """

    program: str
    generations: tuple[PlannedGeneration, ...]
    read_again: tuple[ReadAgain, ...]
    problems: tuple[str, ...]
    cost: Cost
    context_len: int
    page_size: int
    num_pages: int | None

    @property
    def context_fit(self) -> Fit:
        """Whether every prompt fits its model's context together with its answer."""
        if any(one.fit == "does not fit" and one.is_certain for one in self.generations):
            return "does not fit"
        is_doubtful = any(one.fit != "fits" for one in self.generations)
        return "may not fit" if is_doubtful else "fits"

    @property
    def pool_fit(self) -> Fit | None:
        """Whether the pages held at peak are there; None where nobody said how many there are.

        What may not fit still runs: steps wait for pages, or compute again what they lost.
        """
        if self.num_pages is None:
            return None
        if self.cost.pages.least > self.num_pages:
            return "does not fit"
        return "may not fit" if self.cost.pages.may_exceed(self.num_pages) else "fits"
