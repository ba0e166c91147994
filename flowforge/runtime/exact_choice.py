"""A choice made from scores: exact, where a mask takes the first token before it knows the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flowforge.backends.protocol import GenerationDone, ScoreRequest
from flowforge.runtime.seeds import derived_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.protocol import (
        Conversation,
        GenerateRequest,
        Score,
        ScoringDone,
    )


async def choose_exactly(
    conversation: Conversation, request: GenerateRequest
) -> tuple[GenerationDone, ScoringDone]:
    """Weigh the texts of a request's choice, and say one of them; with what the weighing cost."""
    assert request.choice is not None, "what is scored exactly is a choice"
    wanted = ScoreRequest(request.choice, request.priority, request.label)
    scored = await conversation.score(wanted)
    sampling = request.sampling
    text = drawn_text(scored.scores, sampling.temperature or 0.0, sampling.seed or 0)
    conversation.add_assistant(text)
    return GenerationDone(text, "stop", scored.usage), scored


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
