"""Several outputs of one prompt: the prompt is computed once, each output is a fork of its own."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from flowforge.engine.sequence import GenerationFinished, GenerationRequest, TokensArrived
from flowforge.errors import EngineError
from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.handle import EngineSequence
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.sequence import FinishReason, GenerationUsage, StopCondition


@dataclass(frozen=True, slots=True)
class SampledOutput:
    """One output. usage: of the fork; the prompt is not prefilled there.

    logprobs: one for each token, when the request asks for them.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    reason: FinishReason
    usage: GenerationUsage


async def generate_samples(
    sequence: EngineSequence,
    request: GenerationRequest,
    num_samples: int,
    *,
    make_stop: Callable[[], StopCondition] | None = None,
) -> tuple[SampledOutput, ...]:
    """Generate `num_samples` outputs of one sequence side by side, in order of their branch.

    Output i is sampled as branch `request.params.branch + i`, so it is the same whatever the
    number of samples. The request's constraint is forked for each. make_stop: makes each output's
    stop condition, which has a state of its own; the request's own must be None.
    The sequence is computed and else unchanged; forks are closed when this returns or raises.
    Raises EngineError EN210 for a number below 1 or a stop condition to share, and as
    `EngineSequence.generate`: the first error ends all.
    """
    if num_samples < 1:
        raise EngineError("EN210", f"num_samples must be at least 1, got {num_samples}")
    if request.stop is not None:
        raise EngineError(
            "EN210",
            "one stop condition cannot serve several outputs",
            help="give make_stop, which makes one for each",
        )
    await sequence.prefill()
    outputs: dict[int, SampledOutput] = {}

    async def write(branch: int) -> None:
        fork = await sequence.fork()
        try:
            outputs[branch] = await _output_of(fork, _request_of(request, branch, make_stop))
        finally:
            await fork.close()

    try:
        async with anyio.create_task_group() as tasks:
            for branch in range(num_samples):
                tasks.start_soon(write, branch)
    except ExceptionGroup as group:
        raise first_error(group) from None
    return tuple(outputs[branch] for branch in range(num_samples))


def _request_of(
    request: GenerationRequest, branch: int, make_stop: Callable[[], StopCondition] | None
) -> GenerationRequest:
    return replace(
        request,
        params=replace(request.params, branch=request.params.branch + branch),
        constraint=None if request.constraint is None else request.constraint.fork(),
        stop=None if make_stop is None else make_stop(),
    )


async def _output_of(sequence: EngineSequence, request: GenerationRequest) -> SampledOutput:
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    async with aclosing(sequence.generate(request)) as updates:
        async for update in updates:
            if isinstance(update, TokensArrived):
                token_ids += update.token_ids
                logprobs += update.logprobs
            elif isinstance(update, GenerationFinished):
                return SampledOutput(tuple(token_ids), tuple(logprobs), update.reason, update.usage)
    raise AssertionError("a generation ends with its usage or an error")
