"""What a generation says next: the sampled token, what a constraint forces, and whether it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.sampling import TokenLogprobs, adjust, logprobs_of, sample
from flowforge.errors import EngineError

if TYPE_CHECKING:
    import numpy.typing as npt

    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.sampling import SamplingParams
    from flowforge.engine.sequence import FinishReason, Generation


_MAX_REFUSALS = 64


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """token_ids: at least one. logprobs: one for each, when asked for. end: None to go on."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    end: FinishReason | None


def new_mask(vocab_size: int) -> npt.NDArray[np.uint32]:
    """Room for one mask, not filled; see `TokenConstraint.fill_mask`."""
    return np.empty(-(-vocab_size // 32), dtype=np.uint32)


def choose_tokens(
    generation: Generation,
    tokens: list[int],
    logits: npt.NDArray[np.float32],
    eos_token_ids: frozenset[int],
    mask: npt.NDArray[np.uint32] | None = None,
) -> TokenChoice:
    """Decide the next tokens of a generation.

    tokens: its sequence so far. logits: float32 [vocab_size], the ids that may be said. mask: of
    the generation's constraint for this step, where it was filled before; may be overwritten.
    Advances the generation's constraint and stop condition. Raises EngineError EN21x.
    """
    request, params = generation.request, generation.request.params
    constraint = request.constraint
    scores = logits
    if params.changes_logits:
        # Only then: copying the tokens at each step would cost more the longer the context.
        prompt, output = tokens[: generation.prompt_len], tokens[generation.prompt_len :]
        scores = adjust(logits, params, prompt=prompt, output=output)
    banned = tuple(eos_token_ids) if generation.num_output < params.min_tokens else ()
    if constraint is not None:
        token_id = _sample_allowed(
            constraint, scores, params, len(tokens), eos_token_ids, mask, banned
        )
    else:
        token_id = sample(scores, params, position=len(tokens), banned=banned)
    logprobs: tuple[TokenLogprobs, ...] = ()
    if params.num_logprobs is not None:
        logprobs = (logprobs_of(logits, token_id, params.num_logprobs),)
    room = generation.max_tokens - generation.num_output
    if token_id in eos_token_ids and (constraint is not None or not params.ignore_eos):
        return TokenChoice((token_id,), logprobs, "stop")
    token_ids: tuple[int, ...] = (token_id,)
    is_complete = False
    if constraint is not None:
        # A forced token has no logits of its own, so with logprobs each is sampled by itself.
        most_forced = 0 if params.num_logprobs is not None else room - 1
        token_ids += _take_forced(constraint, most_forced, eos_token_ids)
        is_complete = constraint.is_complete
    if request.stop is not None and request.stop.is_met_by(list(token_ids)):
        is_complete = True
    end: FinishReason | None = "length" if len(token_ids) == room else None
    return TokenChoice(token_ids, logprobs, "stop" if is_complete else end)


def _sample_allowed(
    constraint: TokenConstraint,
    scores: npt.NDArray[np.float32],
    params: SamplingParams,
    position: int,
    eos_token_ids: frozenset[int],
    mask: npt.NDArray[np.uint32] | None,
    banned: tuple[int, ...],
) -> int:
    """Sample a token that the constraint takes; it has then consumed it, but for an end token.

    banned: ids that are taken only where the constraint allows no other.
    """
    if mask is None:
        mask = new_mask(len(scores))
        constraint.fill_mask(mask)
    for _ in range(_MAX_REFUSALS):
        if banned and not _allows_other_than(banned, mask):
            banned = ()
        token_id = sample(scores, params, position=position, mask=mask, banned=banned)
        if token_id in eos_token_ids or constraint.advance(token_id):
            return token_id
        constraint.fill_mask(mask)
    raise EngineError(
        "EN212", f"the constraint refused {_MAX_REFUSALS} tokens that its mask allowed"
    )


def _allows_other_than(token_ids: tuple[int, ...], mask: npt.NDArray[np.uint32]) -> bool:
    left = mask.copy()
    for token_id in token_ids:
        left[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
    return bool(left.any())


def _take_forced(
    constraint: TokenConstraint, most: int, eos_token_ids: frozenset[int]
) -> tuple[int, ...]:
    """The tokens that must follow, consumed; at most so many, and no end token."""
    forced: list[int] = []
    for following in constraint.forced_tokens()[:most]:
        if following in eos_token_ids or not constraint.advance(following):
            break
        forced.append(following)
    return tuple(forced)
