"""Requests to an engine core without a thread, and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from history_model import Updates

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)

if TYPE_CHECKING:
    from flowforge.engine.core import EngineCore


class Client:
    """Opens sequences with ids of its own and reads what arrived."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._last_id = 0

    def open(self, tokens: list[int], namespace: Namespace | None = None) -> SequenceId:
        """A new sequence with a prompt."""
        self._last_id += 1
        sequence_id = SequenceId(self._last_id)
        self.core.open(sequence_id, namespace or Namespace())
        self.core.append(sequence_id, tokens)
        return sequence_id

    def fork(self, parent: SequenceId) -> SequenceId:
        """A fork."""
        self._last_id += 1
        self.core.fork(parent, SequenceId(self._last_id))
        return SequenceId(self._last_id)

    def start(
        self,
        sequence_id: SequenceId,
        max_tokens: int | None,
        *,
        priority: int = 0,
        num_following: int = 0,
    ) -> Updates:
        """Begin a greedy generation."""
        updates = Updates()
        params = SamplingParams(max_tokens=max_tokens)
        request = GenerationRequest(params, priority=priority, num_following=num_following)
        self.core.generate(sequence_id, request, updates)
        return updates

    def request(
        self,
        tokens: list[int],
        max_tokens: int | None,
        *,
        priority: int = 0,
        num_following: int = 0,
    ) -> Updates:
        """Open and start."""
        return self.start(
            self.open(tokens), max_tokens, priority=priority, num_following=num_following
        )

    def run(self, *, most_steps: int = 5000) -> int:
        """Step until nothing is left to do; the number of steps."""
        for num_steps in range(most_steps):
            if not self.core.has_work:
                return num_steps
            self.core.step()
        raise AssertionError("sequences wait for ever")


def text(length: int, *, first: int = 1) -> list[int]:
    """A prompt of ids that repeats nowhere within 40 tokens."""
    return [1 + (first * 7 + 3 * i + i // 40) % 49 for i in range(length)]


def output(updates: Updates) -> list[int]:
    """The tokens that arrived."""
    arrived = [update for update in updates if isinstance(update, TokensArrived)]
    return [token for update in arrived for token in update.token_ids]


def is_over(updates: Updates) -> bool:
    """Whether the last update came."""
    return any(not isinstance(update, TokensArrived) for update in updates)


def usage_of(updates: Updates) -> tuple[int, int]:
    """(prefilled, reused) of a finished generation."""
    end = updates[-1]
    assert isinstance(end, GenerationFinished)
    return end.usage.prefilled_tokens, end.usage.reused_tokens
