"""A stand-in for the model in which a row's KV is the whole history that it depends on.

It sees what a real model cannot show: whether each row that a step reads is the row of exactly the
tokens before it. The next token is a pure function of the history, so a sequence's right output is
known without running it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.core import EngineCore
from flowforge.engine.kv.cache import KvCache, RowCopy
from flowforge.engine.kv.host_tier import HostTier, Offload, Restore
from flowforge.engine.kv.sharing import shared_runs
from flowforge.engine.model_interface import ChunkLogits, ModelLimits
from flowforge.engine.sampling import logprobs_of
from flowforge.engine.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from flowforge.engine.kv.cache import RowMove
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.policy import SchedulingPolicy
    from flowforge.engine.scheduler import Chunk, StepPlan
    from flowforge.engine.sequence import Update
    from flowforge.engine.speculation.speculator import Speculator

VOCAB_SIZE = 50
EOS = 0


def next_token(history: tuple[int, ...]) -> int:
    """What the stand-in says after these tokens; EOS about once in 50."""
    digest = hashlib.blake2b(repr(history).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def right_output(prompt: list[int], max_tokens: int) -> list[int]:
    """The greedy output of a prompt."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens:
        tokens.append(next_token(tuple(tokens)))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


class HistoryRunner:
    """Carries out plans on rows that hold histories; AssertionError for a row of another text."""

    def __init__(self, kv: KvCache) -> None:
        self._kv = kv
        self.rows: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.host_rows: dict[int, list[tuple[Namespace, tuple[int, ...]]]] = {}
        self.num_computed = 0
        self.plans: list[StepPlan] = []
        self.error: Exception | None = None

    @property
    def num_rows_read(self) -> int:
        """It reads every row of every sequence."""
        return sum(chunk.end for plan in self.plans for chunk in plan.chunks)

    def execute(self, plan: StepPlan) -> list[ChunkLogits]:
        """See `StepRunner.execute`."""
        self.plans.append(plan)
        if self.error is not None:
            raise self.error
        for move in plan.moves:
            self._move(move)
        paths = [chunk.sequence.path for chunk in plan.chunks]
        found = shared_runs([path.nodes for path in paths if path is not None])
        assert plan.shared == found, "a plan knows other shared pages than there are"
        for chunk in plan.chunks:
            self._compute(chunk)
        return [self._judge(chunk) for chunk in plan.chunks]

    def _move(self, move: RowMove) -> None:
        size = self._kv.page_size
        match move:
            case RowCopy(source, target, num_rows):
                for row in range(num_rows):
                    self.rows[target * size + row] = self.rows[source * size + row]
            case Offload(page, slot):
                self.host_rows[slot] = [self.rows[page * size + row] for row in range(size)]
            case Restore(slot, page):
                for row in range(size):
                    self.rows[page * size + row] = self.host_rows[slot][row]

    def _judge(self, chunk: Chunk) -> ChunkLogits:
        tokens = tuple(chunk.sequence.tokens)
        scored = tuple(
            logprobs_of(self._logits(tokens[: row + 1]), tokens[row + 1], 0)
            for row in chunk.scored_rows
        )
        if not chunk.is_last:
            return ChunkLogits((), scored)
        ends = range(len(chunk.drafted) + 1)
        behind = (self._logits((*tokens, *chunk.drafted[:end])) for end in ends)
        return ChunkLogits(tuple(behind), scored)

    def _compute(self, chunk: Chunk) -> None:
        sequence, path = chunk.sequence, chunk.sequence.path
        assert path is not None
        first = len(path.nodes) * self._kv.page_size
        assert chunk.start >= first, "a page of the tree is written to"
        tokens = (*sequence.tokens[: chunk.stop], *chunk.drafted)
        for position in range(chunk.end):
            slot = self._kv.slot(path, position)
            row = (sequence.namespace, tokens[: position + 1])
            if position < chunk.start:
                assert self.rows[slot] == row, f"{sequence} reads the row of another text"
            else:
                self.rows[slot] = row
                self.num_computed += 1

    @staticmethod
    def _logits(history: tuple[int, ...]) -> npt.NDArray[np.float32]:
        logits = np.zeros(VOCAB_SIZE, dtype=np.float32)
        logits[next_token(history)] = 1.0
        return logits


class Updates(list["Update"]):
    """A sink that keeps everything."""

    def put(self, update: Update) -> None:
        """See `UpdateSink.put`."""
        self.append(update)


def history_core(
    *,
    num_pages: int = 64,
    page_size: int = 4,
    max_step_tokens: int = 16,
    max_running: int = 8,
    clock: Callable[[], float] = lambda: 0.0,
    policy: SchedulingPolicy | None = None,
    num_host_slots: int = 0,
    speculator: Speculator | None = None,
) -> tuple[EngineCore, HistoryRunner, KvCache]:
    """An engine core on the stand-in; its context is 1,000 tokens."""
    kv = KvCache(num_pages, page_size, host=HostTier(num_host_slots) if num_host_slots else None)
    runner = HistoryRunner(kv)
    core = EngineCore(
        runner,
        kv,
        SchedulerLimits(max_step_tokens, max_running),
        ModelLimits(VOCAB_SIZE, 1000, frozenset({EOS})),
        clock=clock,
        policy=policy,
        speculator=speculator,
    )
    return core, runner, kv
