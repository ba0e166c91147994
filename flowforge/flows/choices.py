"""A choice made from scores: exact, where a mask takes the first token before it knows the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.errors import WorkflowError
from flowforge.runtime.seeds import derived_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.protocol import Score
    from flowforge.flows.sampling import SamplingOptions

Scoring: TypeAlias = Literal["masked", "exact"]
"""How one of some texts is chosen. masked: token by token, with a mask over all other texts. exact:
every text is scored as a whole, and the choice is drawn from these scores."""


def require_exact_options(options: SamplingOptions) -> None:
    """Raise WorkflowError WF610 for options that mean nothing where no token is sampled."""
    for name in options:
        if name not in {"temperature", "seed"}:
            raise WorkflowError(
                "WF610",
                f"option {name!r} means nothing with scoring='exact', where no token is sampled",
                help="options are temperature and seed",
            )


def drawn_text(scores: Sequence[Score], temperature: float, seed: int) -> str:
    """The likeliest text at temperature 0; else one drawn with probability ∝ exp(logprob / T)."""
    best = max(scores, key=lambda score: score.logprob)
    if temperature <= 0:
        return best.text
    weights = [math.exp((score.logprob - best.logprob) / temperature) for score in scores]
    mark = derived_fraction(seed, "choice") * sum(weights)
    for score, weight in zip(scores, weights, strict=True):
        mark -= weight
        if mark < 0:
            return score.text
    return best.text
