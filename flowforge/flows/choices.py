"""A choice made from scores: exact, where a mask takes the first token before it knows the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
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
