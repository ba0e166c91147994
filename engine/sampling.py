"""How the next token is chosen: a pure function of a row of logits, parameters and position.

The order is that of vLLM and the OpenAI API: bias, penalties, minimum length, mask, temperature,
min-p, top-k, top-p, draw. Masked tokens leave the candidates for good: nothing later revives one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.arguments import require, require_integer, require_number
from flowforge.engine.native.survey_library import find_survey_library
from flowforge.engine.quick_draw import best_allowed, draw_quickly, order_of, weights_of
from flowforge.engine.random_draw import uniform_draw
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

# Below this, logits / temperature would overflow and the choice is the argmax anyway.
_GREEDY_BELOW = 1e-4
_MOST_LOGPROBS = 100


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One generation's sampling. Raises EngineError EN210 for values out of range.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off; the smallest set of tokens whose
    probability reaches it is kept. min_p: 0 is off; tokens below that share of the best one's
    probability are dropped.
    repetition_penalty: 1 is off; divides positive and multiplies negative logits of every id that
    prompt or output hold, once each (Keskar et al., arXiv 1909.05858). presence_penalty,
    frequency_penalty: subtracted once, and for each occurrence, for ids of the output.
    logit_bias: added to the logits of these ids; -100 and below bans an id, whatever its logit.
    seed, branch: the same seed and branch give the same tokens, whatever else is in the batch;
    branches of one seed are independent of each other.
    max_tokens: None ends at the context's or the pool's end. min_tokens: no end-of-sequence token
    before; a stop condition or a complete constraint still ends the output.
    num_logprobs: None is off; else each token comes with its log probability under the model,
    before all of the above, and with that many of the likeliest ones.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int = 0
    branch: int = 0
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        self._require_integers()
        self._require_numbers()
        require(isinstance(self.logit_bias, Mapping), "logit_bias", "a mapping", self.logit_bias)
        for token_id, bias in self.logit_bias.items():
            require_integer("a token id of logit_bias", token_id)
            require(token_id >= 0, "logit_bias", "keyed by token ids", token_id)
            require_number("logit_bias", bias)
            require(-100 <= bias <= 100, "logit_bias", "from -100 to 100", bias)

    def _require_integers(self) -> None:
        for name in ("top_k", "seed", "branch", "min_tokens"):
            value: int = getattr(self, name)
            require_integer(name, value)
            note = " (0 is off)" if name == "top_k" else ""
            require(value >= 0, name, f"at least 0{note}", value)
        require(self.branch < 2**64, "branch", "from 0 to 2**64 - 1", self.branch)
        if self.max_tokens is not None:
            require_integer("max_tokens", self.max_tokens)
            require(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
            wanted = f"at most max_tokens ({self.max_tokens})"
            require(self.min_tokens <= self.max_tokens, "min_tokens", wanted, self.min_tokens)
        if self.num_logprobs is not None:
            require_num_logprobs("num_logprobs", self.num_logprobs)

    def _require_numbers(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            require_number(name, getattr(self, name))
        require(0 <= self.temperature < np.inf, "temperature", "at least 0", self.temperature)
        require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        require(0 <= self.min_p <= 1, "min_p", "from 0 to 1", self.min_p)
        penalty = self.repetition_penalty
        require(0 < penalty < np.inf, "repetition_penalty", "above 0 (1 is off)", penalty)
        for name in ("presence_penalty", "frequency_penalty"):
            value: float = getattr(self, name)
            require_number(name, value)
            require(-2 <= value <= 2, name, "from -2 to 2", value)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is chosen, and nothing drawn."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1

    @property
    def changes_logits(self) -> bool:
        """Whether `adjust` has anything to do."""
        return bool(self.logit_bias) or self.looks_back

    @property
    def looks_back(self) -> bool:
        """Whether the choice depends on which tokens were there before."""
        is_penalised = self.presence_penalty != 0 or self.frequency_penalty != 0
        return is_penalised or self.repetition_penalty != 1


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token's log probability under the model, and the likeliest tokens' at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def sample(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    *,
    position: int,
    mask: npt.NDArray[np.uint32] | None = None,
    banned: Sequence[int] = (),
) -> int:
    """Choose a token id.

    logits: float32 [vocab_size], not changed, penalties applied. position: index of the new token
    in its sequence, the counter of the random stream, so the draw depends on (seed, branch,
    position) and nothing else. mask: uint32 [ceil(vocab_size / 32)], bit set = allowed. banned:
    ids never chosen.
    Raises EngineError EN211 when a logit is NaN, EN212 when no token is allowed.
    """
    if len(banned) == 0:
        quick = _choose_quickly(logits, params, position, mask)
        if quick is not None:
            return quick
    allowed = _allowed_ids(mask, len(logits)) if mask is not None else None
    if len(banned) > 0:
        ids = np.arange(len(logits)) if allowed is None else allowed
        allowed = np.setdiff1d(ids, np.asarray(banned), assume_unique=True)
    scores = logits if allowed is None else logits[allowed]
    if scores.size == 0:
        raise dead_end_error(is_constrained=True)
    choice = _choose(scores, params, position)
    return int(choice if allowed is None else allowed[choice])


def adjust(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
) -> npt.NDArray[np.float32]:
    """Bias and penalties: a changed copy, or the same array when the parameters ask for none.

    prompt, output: the sequence's ids, cached or not. Raises EngineError EN210 for a bias on an id
    that is not in the vocabulary.
    """
    if not params.changes_logits:
        return logits
    adjusted = logits.copy()
    for token_id, bias in known_biases(params, len(logits)):
        adjusted[token_id] += bias
    if params.repetition_penalty != 1:
        seen = np.unique(np.asarray([*prompt, *output], dtype=np.int64))
        values = adjusted[seen]
        penalty = np.float32(params.repetition_penalty)
        adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
    if len(output) > 0 and (params.presence_penalty != 0 or params.frequency_penalty != 0):
        ids, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        adjusted[ids] -= (params.presence_penalty + params.frequency_penalty * counts).astype(
            np.float32
        )
    return adjusted


def known_biases(params: SamplingParams, vocab_size: int) -> list[tuple[int, float]]:
    """What is added to some logits: (id, bias), minus infinity for a ban.

    Raises EngineError EN210 for an id that is not in the vocabulary.
    """
    expected = f"keyed by ids below {vocab_size}"
    for token_id in params.logit_bias:
        require(token_id < vocab_size, "logit_bias", expected, token_id)
    return [
        (token_id, -np.inf if bias <= -100 else bias)
        for token_id, bias in params.logit_bias.items()
    ]


def nan_error() -> EngineError:
    """Of logits that no token can be chosen from."""
    return EngineError("EN211", "the model gave NaN logits", help="check the weights and dtype")


def dead_end_error(*, is_constrained: bool) -> EngineError:
    """Of a row in which nothing is allowed."""
    why = "a dead end of the constraint" if is_constrained else "logit_bias bans all that are left"
    return EngineError("EN212", f"no token is allowed here: {why}")


def require_num_logprobs(name: str, value: int) -> None:
    """Raise EngineError EN210 for more log probabilities beside a token than may be asked for."""
    require_integer(name, value)
    require(0 <= value <= _MOST_LOGPROBS, name, f"0 to {_MOST_LOGPROBS}", value)


def logprobs_of(logits: npt.NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    """A token's log probability in a row of logits, with the `num_top` likeliest.

    logits: float32 [vocab_size]. Equal probabilities are in order of id.
    """
    shifted = logits.astype(np.float64) - float(logits.max())
    logprobs = shifted - np.log(np.exp(shifted).sum())
    best = _best(logits, num_top) if num_top else np.empty(0, dtype=np.intp)
    top = tuple((int(one), float(logprobs[one])) for one in best)
    return TokenLogprobs(token_id, float(logprobs[token_id]), top)


def candidates(
    scores: npt.NDArray[np.float32], params: SamplingParams
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """What a token is drawn from: indices into `scores`, the likeliest first, and their weights.

    scores: float32 [num_scores], not all -inf. params: a temperature above 0. Weights are relative
    to the first, which is 1. Equal scores are in order of index, one on every machine.
    """
    order = _best(scores, params.top_k)
    weights = weights_of(scores[order], params.temperature)
    if params.min_p > 0:
        keep = int(np.count_nonzero(weights >= params.min_p))
        order, weights = order[:keep], weights[:keep]
    if params.top_p < 1:
        cumulative = weights.cumsum()
        keep = int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1
        order, weights = order[:keep], weights[:keep]
    return order, weights


def _choose(scores: npt.NDArray[np.float32], params: SamplingParams, position: int) -> int:
    best = int(scores.argmax())  # argmax of a row with a NaN is the NaN
    if np.isnan(scores[best]):
        raise nan_error()
    if scores[best] == -np.inf:
        raise dead_end_error(is_constrained=False)
    if params.is_greedy:
        return best
    order, weights = candidates(scores, params)
    cumulative = weights.cumsum()
    uniform = uniform_draw(params.seed, params.branch, position)
    picked = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(order[min(picked, len(order) - 1)])


def _choose_quickly(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    position: int,
    mask: npt.NDArray[np.uint32] | None,
) -> int | None:
    """What `_choose` comes to, where that needs no order of all; None otherwise."""
    if params.is_greedy:
        return None if mask is None else best_allowed(logits, mask, find_survey_library())
    uniform = uniform_draw(params.seed, params.branch, position)
    return draw_quickly(logits, params, uniform, mask, find_survey_library())


def _best(scores: npt.NDArray[np.float32], top_k: int) -> npt.NDArray[np.intp]:
    if not 0 < top_k < scores.size:
        return order_of(scores)
    # Everything that is at least the k-th best, then the stable order, then exactly k.
    threshold = np.partition(scores, -top_k)[-top_k]
    ids = np.flatnonzero(scores >= threshold)
    return ids[order_of(scores[ids])][:top_k]


def _allowed_ids(mask: npt.NDArray[np.uint32], vocab_size: int) -> npt.NDArray[np.intp]:
    bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little")
    return np.flatnonzero(bits)
