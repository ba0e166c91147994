"""Texts that could follow a sequence, weighed: what several begin with is computed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.handle import EngineSequence
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.sequence import GenerationUsage


@dataclass(frozen=True, slots=True)
class ScoredContinuations:
    """How likely the model found each continuation, one entry a token.

    usage: of computing the sequence itself. num_computed: tokens of continuations that were
    computed; each distinct one once.
    """

    logprobs: tuple[tuple[TokenLogprobs, ...], ...]
    usage: GenerationUsage
    num_computed: int


async def score_continuations(
    sequence: EngineSequence, continuations: Sequence[Sequence[int]]
) -> ScoredContinuations:
    """Score them side by side on forks of the sequence, which is computed and else unchanged.

    Continuations are laid out as a tree: a beginning that several share is one fork, from which
    theirs fork in turn. Raises EngineError EN201 for an empty one, and as `EngineSequence.score`.
    """
    usage = await sequence.prefill()
    scores: list[list[TokenLogprobs]] = [[] for _ in continuations]
    num_computed = 0

    async def score_segment(parent: EngineSequence, segment: _Segment) -> None:
        nonlocal num_computed
        fork = await parent.fork()
        try:
            scored = await fork.score(segment.token_ids)
            num_computed += len(scored)
            for place in segment.places:
                scores[place] += scored
            await score_all(fork, segment.following)
        finally:
            await fork.close()

    async def score_all(parent: EngineSequence, segments: Sequence[_Segment]) -> None:
        async with anyio.create_task_group() as tasks:
            for segment in segments:
                tasks.start_soon(score_segment, parent, segment)

    try:
        await score_all(sequence, _segments_of(continuations))
    except ExceptionGroup as group:
        raise first_error(group) from None
    return ScoredContinuations(tuple(map(tuple, scores)), usage, num_computed)


@dataclass(slots=True)
class _Segment:
    """Tokens in a row that the continuations at `places` share, and what follows for some."""

    token_ids: list[int]
    places: list[int]
    following: list[_Segment] = field(default_factory=list["_Segment"])


def _segments_of(continuations: Sequence[Sequence[int]]) -> list[_Segment]:
    """The tree of continuations; an empty one is a segment without tokens, which `score` refuses.

    Not recursive: a continuation may have any length.
    """
    roots: list[_Segment] = []
    todo = [(roots, list(range(len(continuations))), 0)]
    while todo:
        siblings, places, start = todo.pop()
        by_token: dict[int | None, list[int]] = {}
        for place in places:
            following = continuations[place][start : start + 1]
            by_token.setdefault(following[0] if following else None, []).append(place)
        for token_id, group in by_token.items():
            if token_id is None:
                if start == 0:
                    siblings.append(_Segment([], group))
                continue
            stop = start + _num_shared([continuations[place] for place in group], start)
            segment = _Segment(list(continuations[group[0]][start:stop]), group)
            siblings.append(segment)
            todo.append((segment.following, group, stop))
    return roots


def _num_shared(continuations: Sequence[Sequence[int]], start: int) -> int:
    """How many tokens from `start` on all of them share."""
    first, *others = continuations
    stop = min(map(len, continuations))
    for position in range(start, stop):
        if any(other[position] != first[position] for other in others):
            return position - start
    return stop - start
