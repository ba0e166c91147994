"""A stand-in for the model in which a row's KV is the whole history that it depends on.

It sees what a real model cannot show: whether each row that a step reads is the row of exactly the
tokens before it. The next token is a pure function of the history, so a sequence's right output is
known without running it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.core import EngineCore
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.host_tier import HostTier, Offload, Restore
from flowforge.engine.kv.moves import RowCopy
from flowforge.engine.kv.sharing import shared_runs
from flowforge.engine.model_interface import ChunkLogits, ModelLimits, StepResult
from flowforge.engine.row_draw import HostLogits
from flowforge.engine.sampling import logprobs_of
from flowforge.engine.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from flowforge.engine.kv.moves import RowMove
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.model_interface import LaunchedStep
    from flowforge.engine.policy import SchedulingPolicy
    from flowforge.engine.row_draw import RowDraw
    from flowforge.engine.sequence import Update
    from flowforge.engine.speculation.speculator import Speculator
    from flowforge.engine.step_plan import Chunk, StepPlan

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
    """Carries out plans on rows that hold histories; AssertionError for a row of another text.

    error: raised by the next launches. plans: all that were launched.
    """

    def __init__(self, kv: KvCache) -> None:
        self.kv = kv
        self.rows: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.host_rows: dict[int, list[tuple[Namespace, tuple[int, ...]]]] = {}
        self.num_computed = 0
        self.num_read = 0
        self.plans: list[StepPlan] = []
        self.error: Exception | None = None

    @property
    def num_rows_read(self) -> int:
        """It reads every row of every sequence."""
        return self.num_read

    @property
    def draws_tokens(self) -> bool:
        """See `StepRunner.draws_tokens`."""
        return False

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """See `StepRunner.launch`. Computes everything at once."""
        self.note(plan)
        chunks = [HistoryChunk.of(self.kv, chunk) for chunk in plan.chunks]
        self.move(plan.moves)
        for chunk in chunks:
            self.compute(chunk)
        return _Computed([self.judge(chunk) for chunk in chunks])

    def note(self, plan: StepPlan) -> None:
        """Look at a plan that is launched."""
        self.plans.append(plan)
        if self.error is not None:
            raise self.error
        paths = [chunk.sequence.path for chunk in plan.chunks]
        found = shared_runs([path.nodes for path in paths if path is not None])
        assert plan.shared == found, "a plan knows other shared pages than there are"

    def compute(self, chunk: HistoryChunk) -> None:
        """Write a chunk's rows, whose readers' rows are looked at."""
        tokens, start = chunk.tokens, chunk.start
        self.num_read += len(tokens)
        for position, slot in enumerate(chunk.slots):
            row = (chunk.namespace, tokens[: position + 1])
            if position < start:
                assert self.rows[slot] == row, f"{chunk.name} reads the row of another text"
            else:
                self.rows[slot] = row
                self.num_computed += 1

    def judge(self, chunk: HistoryChunk) -> ChunkLogits:
        """What the stand-in says about a chunk."""
        tokens = chunk.tokens
        scored = tuple(
            logprobs_of(self.logits(tokens[: row + 1]), following, 0)
            for row, following in chunk.scored
        )
        ends = range(chunk.stop, len(tokens) + 1) if chunk.is_last else ()
        behind = (HostLogits(self.logits(tokens[:end])) for end in ends)
        return ChunkLogits(tuple(behind), scored)

    def move(self, moves: Iterable[RowMove]) -> None:
        """Carry out moves, in order."""
        size = self.kv.page_size
        for move in moves:
            match move:
                case RowCopy(source, target, num_rows):
                    for row in range(num_rows):
                        self.rows[target * size + row] = self.rows[source * size + row]
                case Offload(page, slot):
                    self.host_rows[slot] = [self.rows[page * size + row] for row in range(size)]
                case Restore(slot, page):
                    for row in range(size):
                        self.rows[page * size + row] = self.host_rows[slot][row]

    def logits(self, history: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """What the stand-in says behind a history."""
        logits = np.zeros(VOCAB_SIZE, dtype=np.float32)
        logits[next_token(history)] = 1.0
        return logits


@dataclass(frozen=True)
class HistoryChunk:
    """A chunk as it was launched, with the rows that its path had then.

    tokens: with the guesses; a token that is fed is missing. scored: rows and the tokens behind.
    """

    name: str
    namespace: Namespace
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    start: int
    stop: int
    feed: int | None
    is_last: bool
    scored: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, kv: KvCache, chunk: Chunk) -> HistoryChunk:
        """Of a plan that is launched now."""
        sequence, path = chunk.sequence, chunk.sequence.path
        assert path is not None
        assert chunk.start >= len(path.nodes) * kv.page_size, "a page of the tree is written to"
        tokens = sequence.tokens
        return cls(
            repr(sequence),
            sequence.namespace,
            (*tokens[: chunk.stop], *chunk.drafted),
            tuple(kv.slot(path, position) for position in range(chunk.end)),
            chunk.start,
            chunk.stop,
            chunk.feed,
            chunk.is_last,
            tuple((row, tokens[row + 1]) for row in chunk.scored_rows),
        )


@dataclass(frozen=True)
class _Computed:
    """See `LaunchedStep`."""

    chunks: list[ChunkLogits]

    def draw(self, draws: Sequence[RowDraw], kept: Sequence[int] = ()) -> None:
        """See `LaunchedStep.draw`."""
        raise AssertionError("it draws no tokens")

    def read(self) -> StepResult:
        """See `LaunchedStep.read`."""
        return StepResult(self.chunks)


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
    make_runner: Callable[[KvCache], HistoryRunner] = HistoryRunner,
    overlaps: bool = False,
    max_context_len: int = 1000,
) -> tuple[EngineCore, HistoryRunner, KvCache]:
    """An engine core on the stand-in."""
    kv = KvCache(num_pages, page_size, host=HostTier(num_host_slots) if num_host_slots else None)
    runner = make_runner(kv)
    core = EngineCore(
        runner,
        kv,
        SchedulerLimits(max_step_tokens, max_running),
        ModelLimits(VOCAB_SIZE, max_context_len, frozenset({EOS})),
        clock=clock,
        policy=policy,
        speculator=speculator,
        overlaps=overlaps,
    )
    return core, runner, kv
