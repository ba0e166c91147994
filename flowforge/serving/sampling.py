"""How the next token is chosen, as requests say it: in the defaults of the OpenAI API."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from flowforge.engine.sampling import SamplingParams
from flowforge.serving.failures import bad_request

if TYPE_CHECKING:
    from flowforge.serving.requests import SamplingFields

_SEED_MASK = 2**63 - 1
_LEAST_TOP_P = 1e-6


def sampling_of(
    request: SamplingFields, max_tokens: int | None, num_logprobs: int | None
) -> SamplingParams:
    """The parameters of a request. Without a seed one is drawn.

    Raises RequestError 400 for a bias on what is no token id, EngineError EN210 for a bias out of
    range.
    """
    seed = secrets.randbits(63) if request.seed is None else request.seed & _SEED_MASK
    least = request.min_tokens or 0
    if max_tokens is not None and least > max_tokens:
        raise bad_request(
            f"min_tokens is {least}, and at most {max_tokens} may be written", "min_tokens"
        )
    top_p = 1.0 if request.top_p is None else max(request.top_p, _LEAST_TOP_P)
    return SamplingParams(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=top_p,
        min_p=request.min_p or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_biases(request.logit_bias or {}),
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=least,
        ignore_eos=bool(request.ignore_eos),
        num_logprobs=num_logprobs,
    )


def biased_ids(request: SamplingFields) -> list[int]:
    """The ids that a request biases. Raises RequestError 400 for what is no token id."""
    return [*_biases(request.logit_bias or {})]


def _biases(told: dict[str, float]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token_id, bias in told.items():
        if not token_id.isascii() or not token_id.isdigit() or len(token_id) > 9:
            raise bad_request(f"logit_bias: {token_id!r} is no token id", "logit_bias")
        biases[int(token_id)] = bias
    return biases
