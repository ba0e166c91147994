"""How the next token is chosen: a pure function of a row of logits, parameters and position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flowforge.errors import EngineError

if TYPE_CHECKING:
    import numpy.typing as npt

# Below this, logits / temperature would overflow and the choice is the argmax anyway.
_GREEDY_BELOW = 1e-4


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One generation's sampling. Raises EngineError EN210 for values out of range.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off; the smallest set of tokens whose
    probability reaches it is kept. seed: the same seed gives the same tokens, whatever else is in
    the batch. max_tokens: None ends at the context's or the pool's end.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, "temperature", "at least 0", self.temperature)
        _require(np.isfinite(self.temperature), "temperature", "finite", self.temperature)
        _require(self.top_k >= 0, "top_k", "at least 0 (0 is off)", self.top_k)
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        _require(self.seed >= 0, "seed", "at least 0", self.seed)
        _require(
            self.max_tokens is None or self.max_tokens >= 1,
            "max_tokens", "at least 1", self.max_tokens,
        )  # fmt: skip


def sample(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    *,
    position: int,
    mask: npt.NDArray[np.uint32] | None = None,
) -> int:
    """Choose a token id.

    logits: float32 [vocab_size], not changed. position: index of the new token in its sequence, the
    counter of the random stream, so the draw depends on (seed, position) and nothing else.
    mask: uint32 [ceil(vocab_size / 32)], bit set = allowed.
    Raises EngineError EN211 when a logit is NaN, EN212 when the mask allows no token.
    """
    allowed = _allowed_ids(mask, len(logits)) if mask is not None else None
    scores = logits if allowed is None else logits[allowed]
    if scores.size == 0:
        raise EngineError("EN212", "the constraint allows no token here: a dead end")
    choice = _choose(scores, params, position)
    return int(choice if allowed is None else allowed[choice])


def _choose(scores: npt.NDArray[np.float32], params: SamplingParams, position: int) -> int:
    best = int(scores.argmax())  # argmax of a row with a NaN is the NaN
    if np.isnan(scores[best]):
        raise EngineError("EN211", "the model gave NaN logits", help="check the weights and dtype")
    if params.temperature < _GREEDY_BELOW or params.top_k == 1:
        return best
    # Ids in order of falling score; equal scores by id, so the order is one on every machine.
    order = _candidates(scores, params.top_k)
    weights = np.exp((scores[order].astype(np.float64) - float(scores[best])) / params.temperature)
    cumulative = weights.cumsum()
    if params.top_p < 1:
        keep = int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1
        order, cumulative = order[:keep], cumulative[:keep]
    uniform = _uniform(params.seed, position)
    picked = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(order[min(picked, len(order) - 1)])


def _candidates(scores: npt.NDArray[np.float32], top_k: int) -> npt.NDArray[np.intp]:
    if not 0 < top_k < scores.size:
        return np.argsort(-scores, kind="stable")
    # Everything that is at least the k-th best, then the stable order, then exactly k.
    threshold = np.partition(scores, -top_k)[-top_k]
    ids = np.flatnonzero(scores >= threshold)
    return ids[np.argsort(-scores[ids], kind="stable")][:top_k]


def _uniform(seed: int, position: int) -> float:
    """A counter-based draw in [0, 1): Philox keyed by the seed, at this position."""
    key = np.array([seed & (2**64 - 1), seed >> 64 & (2**64 - 1)], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=position)).random())


def _allowed_ids(mask: npt.NDArray[np.uint32], vocab_size: int) -> npt.NDArray[np.intp]:
    bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little")
    return np.flatnonzero(bits)


def _require(is_met: bool | np.bool_, name: str, expected: str, got: object) -> None:
    if not is_met:
        raise EngineError("EN210", f"{name} must be {expected}, got {got!r}")
