"""What a generation says next: the sampled token, what a constraint forces, and whether it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.row_draw import NO_NUMBER, NO_TOKEN, RowDraw, draw_token
from flowforge.engine.sampling import TokenLogprobs, dead_end_error, logprobs_of, nan_error
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.row_draw import DrawnToken, LogitsRow
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


def plan_draw(
    generation: Generation,
    tokens: Sequence[int],
    source: int | npt.NDArray[np.float32],
    eos_token_ids: frozenset[int],
    mask: npt.NDArray[np.uint32] | None,
    num_guessed: int = 0,
) -> RowDraw:
    """What the next token of a generation depends on; see `RowDraw`.

    tokens: its sequence so far, whose last `num_guessed` are guesses. mask: of its constraint.
    """
    params = generation.request.params
    num_output = generation.num_output + num_guessed
    banned = tuple(eos_token_ids) if num_output < params.min_tokens else ()
    if banned and mask is not None and not _allows_other_than(banned, mask):
        banned = ()
    if not params.looks_back:
        # Copying the tokens at each step would cost more the longer the context.
        return RowDraw(source, params, len(tokens), mask, banned)
    prompt, output = tokens[: generation.prompt_len], tokens[generation.prompt_len :]
    return RowDraw(source, params, len(tokens), mask, banned, prompt, output)


def choose_tokens(
    generation: Generation,
    tokens: list[int],
    logits: LogitsRow,
    eos_token_ids: frozenset[int],
    mask: npt.NDArray[np.uint32] | None = None,
    drawn: DrawnToken | None = None,
) -> TokenChoice:
    """Decide the next tokens of a generation.

    tokens: its sequence so far. logits: behind them. mask: of the generation's constraint for this
    step, where it was filled before; may be overwritten. drawn: from these logits already.
    Advances the generation's constraint and stop condition. Raises EngineError EN21x.
    """
    request, params = generation.request, generation.request.params
    constraint = request.constraint
    token_id = None if drawn is None else _token_of(drawn, constraint)
    if token_id is not None and _is_taken(token_id, constraint, eos_token_ids):
        pass
    elif constraint is None:
        values = logits.on_host()
        token_id = draw_token(plan_draw(generation, tokens, values, eos_token_ids, None), values)
    else:
        values = logits.on_host()
        token_id = _draw_allowed(generation, tokens, constraint, values, eos_token_ids, mask)
    logprobs: tuple[TokenLogprobs, ...] = ()
    if params.num_logprobs is not None:
        if drawn is not None and drawn.logprobs is not None and drawn.token_id == token_id:
            logprobs = (drawn.logprobs,)
        else:
            values = logits.on_host()
            logprobs = (logprobs_of(values, token_id, params.num_logprobs),)
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


def _token_of(drawn: DrawnToken, constraint: TokenConstraint | None) -> int:
    if drawn.token_id == NO_NUMBER:
        raise nan_error()
    if drawn.token_id == NO_TOKEN:
        raise dead_end_error(is_constrained=constraint is not None)
    return drawn.token_id


def _is_taken(
    token_id: int, constraint: TokenConstraint | None, eos_token_ids: frozenset[int]
) -> bool:
    return constraint is None or token_id in eos_token_ids or constraint.advance(token_id)


def _draw_allowed(
    generation: Generation,
    tokens: list[int],
    constraint: TokenConstraint,
    logits: npt.NDArray[np.float32],
    eos_token_ids: frozenset[int],
    mask: npt.NDArray[np.uint32] | None,
) -> int:
    """Draw a token that the constraint takes; it has then consumed it, but for an end token.

    Ids that are banned are taken only where the constraint allows no other.
    """
    if mask is None:
        mask = new_mask(len(logits))
        constraint.fill_mask(mask)
    for _ in range(_MAX_REFUSALS):
        token_id = draw_token(plan_draw(generation, tokens, logits, eos_token_ids, mask), logits)
        if _is_taken(token_id, constraint, eos_token_ids):
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
