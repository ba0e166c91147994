"""Which tokens of which sequences are computed next: decisions only, no torch, no clock.

There is no prefill phase and no decode phase: a step is a number of tokens for each sequence
(vLLM's V1 scheduler). Running sequences come first, those that decode before those that prefill;
then waiting ones are admitted, in order of rank.

Progress. The first in rank (priority, then age) is never preempted, and a sequence that could not
fit an empty pool is refused at submission, so the first always gets its rows: by eviction, then by
releasing idle sequences, then by preempting the last in rank. Admission takes the rows of the whole
prompt at once and from free, cached and idle pages only, so two prompts never preempt each other
chunk by chunk.
The head of the queue is not overtaken when it lacks pages, so nothing starves; only a sequence
that waits for another's prefix steps aside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.engine.kv.cache import Reserved, RowCopy
from flowforge.engine.kv.tokens import common_prefix_len
from flowforge.engine.sequence import Sequence, SequenceState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.engine.kv.cache import KvCache


# Up to this many pending tokens count as decoding: a sampled token and what a constraint forced.
_DECODE_LEN = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of a sequence are computed in this step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether nothing of the sequence is left to compute, so its logits are wanted."""
        return self.stop == len(self.sequence.tokens)

    @property
    def scored_rows(self) -> range:
        """Positions whose logits say how likely the next given token was; mostly none."""
        generation = self.sequence.generation
        if generation is None or generation.scoring is None:
            return range(0)
        first = max(self.start, generation.scoring.first_row)
        return range(first, min(self.stop, generation.prompt_len - 1))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """copies, in order, then one forward pass over all chunks; then `ready` sample without one."""

    copies: tuple[RowCopy, ...]
    chunks: tuple[Chunk, ...]
    ready: tuple[Sequence, ...]

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.chunks or self.ready)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """max_step_tokens: rows of one forward pass. max_running: sequences in one step."""

    max_step_tokens: int
    max_running: int


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """num_preemptions, num_deferrals: since the start."""

    num_running: int
    num_waiting: int
    num_idle: int
    num_preemptions: int
    num_deferrals: int


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    budget: int
    copies: list[RowCopy] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    ready: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence) -> None:
        start = sequence.num_computed
        stop = min(len(sequence.tokens), start + self.budget)
        self.budget -= stop - start
        self.chunks.append(Chunk(sequence, start, stop))

    def remove(self, sequence: Sequence) -> None:
        for chunk in self.chunks:
            if chunk.sequence is sequence:
                self.budget += chunk.stop - chunk.start
                self.chunks.remove(chunk)
                return


class Scheduler:
    """Owns the states of sequences and their paths; the only one to open, grow or release them."""

    def __init__(self, kv: KvCache, limits: SchedulerLimits) -> None:
        self._kv = kv
        self._limits = limits
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._idle: dict[Sequence, None] = {}
        self._clock = 0
        self._num_preemptions = 0
        self._num_deferrals = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    def waiting(self) -> Iterator[Sequence]:
        """Sequences that have work and are not admitted, in order of rank."""
        return iter(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence under care, idle."""
        self._clock += 1
        sequence.last_use = self._clock
        self._idle[sequence] = None

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Take `child` under care, holding the full pages of `parent`."""
        if parent.path is not None:
            child.path = self._kv.fork(parent.path)
        child.last_logits = parent.last_logits
        self.add(child)

    def start(self, sequence: Sequence) -> None:
        """An idle sequence has work now."""
        assert sequence.state is SequenceState.IDLE, f"{sequence} is busy"
        del self._idle[sequence]
        self._enqueue(sequence)

    def stop(self, sequence: Sequence) -> None:
        """A sequence has no more work; what it computed stays held until pages are short."""
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        else:
            return
        sequence.state = SequenceState.IDLE
        self.add(sequence)

    def close(self, sequence: Sequence) -> None:
        """End a sequence in any state and give its pages back. Idempotent."""
        if sequence.state is SequenceState.CLOSED:
            return
        self.stop(sequence)
        del self._idle[sequence]
        self._drop_path(sequence)
        sequence.state = SequenceState.CLOSED

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Forget an idle sequence's tokens behind `num_tokens`; the pages stay cached."""
        assert sequence.state is SequenceState.IDLE, f"{sequence} is busy"
        if num_tokens < len(sequence.tokens):
            del sequence.tokens[num_tokens:]
            sequence.last_logits = None
            if sequence.num_computed > num_tokens:
                self._drop_path(sequence)

    def plan_step(self) -> StepPlan:
        """Decide the next step and take the pages for it.

        The caller carries the plan out and then says `committed`, or `abandon`s it.
        """
        draft = _Draft(self._limits.max_step_tokens)
        # Decodes before prefills: a long prompt must not make running streams wait.
        order = sorted(self._running, key=lambda one: (one.num_pending > _DECODE_LEN, one.rank))
        for sequence in order:
            if sequence.state is SequenceState.RUNNING and draft.budget > 0:
                self._plan_running(sequence, draft)
        self._admit(draft)
        return StepPlan(tuple(draft.copies), tuple(draft.chunks), tuple(draft.ready))

    def committed(self, plan: StepPlan) -> None:
        """The rows of the plan are written."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert sequence.path is not None, "a planned sequence has a path"
            self._kv.commit(sequence.path, sequence.tokens[chunk.start : chunk.stop])

    def abandon(self, plan: StepPlan) -> None:
        """The step failed: its sequences become idle, and keep no page that it may have written."""
        for sequence in [*(chunk.sequence for chunk in plan.chunks), *plan.ready]:
            self.stop(sequence)
            self._discard_path(sequence)

    def statistics(self) -> SchedulerStatistics:
        """A snapshot."""
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_idle=len(self._idle),
            num_preemptions=self._num_preemptions,
            num_deferrals=self._num_deferrals,
        )

    def _plan_running(self, sequence: Sequence, draft: _Draft) -> None:
        if sequence.num_pending == 0:
            draft.ready.append(sequence)
            return
        stop = min(len(sequence.tokens), sequence.num_computed + draft.budget)
        while not self._reserve(sequence, stop):
            last = self._running[-1]
            draft.remove(last)
            self._preempt(last)
            if last is sequence:
                return
        draft.add(sequence)

    def _admit(self, draft: _Draft) -> None:
        for sequence in list(self._waiting):
            if draft.budget <= 0 or len(self._running) >= self._limits.max_running:
                return
            if self._waits_for_a_prefix(sequence):
                self._num_deferrals += 1
                continue
            if not self._admit_one(sequence, draft):
                return

    def _admit_one(self, sequence: Sequence, draft: _Draft) -> bool:
        limit = sequence.num_reusable
        if sequence.num_computed > limit:
            # Computed, but logits that are wanted are gone: those tokens are computed once more.
            self._drop_path(sequence)
        path = sequence.path
        if path is None:
            path = sequence.path = self._kv.open(sequence.namespace)
        copy = self._kv.advance(path, sequence.tokens, limit)
        if not self._reserve(sequence, len(sequence.tokens)):
            # A copy that will not be carried out must leave no page that claims its rows.
            if copy is not None:
                self._discard_path(sequence)
            self._drop_path(sequence)
            return False
        if copy is not None:
            draft.copies.append(copy)
        if sequence.generation is not None and sequence.generation.reused_tokens is None:
            sequence.generation.reused_tokens = sequence.num_computed
        self._waiting.remove(sequence)
        self._running.append(sequence)
        self._running.sort(key=lambda one: one.rank)
        sequence.state = SequenceState.RUNNING
        if sequence.num_pending == 0:
            draft.ready.append(sequence)
        else:
            sequence.last_logits = None
            draft.add(sequence)
        return True

    def _waits_for_a_prefix(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to compute tokens that this one needs as well.

        In-batch duplicates (SGLang, TensorRT-LLM): the first fills, the rest wait for it and hit.
        """
        limit = sequence.num_reusable
        known: int | None = None
        for other in self._running:
            if other.num_pending == 0 or other.namespace != sequence.namespace:
                continue
            shared = min(common_prefix_len(sequence.tokens, other.tokens), limit)
            if shared <= other.num_computed:
                continue
            if known is None:
                known = self._known_len(sequence, limit)
            if shared > known:
                return True
        return False

    def _known_len(self, sequence: Sequence, limit: int) -> int:
        if sequence.path is not None:
            return self._kv.match_len(sequence.path, sequence.tokens, limit)
        probe = self._kv.open(sequence.namespace)
        try:
            return self._kv.match_len(probe, sequence.tokens, limit)
        finally:
            self._kv.release(probe)

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Get rows for the sequence; takes the paths of those that do not run if it must."""
        assert sequence.path is not None, "rows are reserved on a path"
        while not isinstance(self._kv.reserve(sequence.path, num_tokens), Reserved):
            holder = self._next_to_lose_its_path(sequence)
            if holder is None:
                return False
            self._drop_path(holder)
        return True

    def _next_to_lose_its_path(self, asking: Sequence) -> Sequence | None:
        """Idle ones first, as far as known those needed last; then who waits, the newest before.

        Steps to the next use as the order of eviction: KVFlow (arXiv 2507.07400).
        """
        idle = [one for one in self._idle if one.path is not None]
        if idle:
            return max(idle, key=lambda one: (one.next_use, -one.last_use))
        waiting = (one for one in reversed(self._waiting) if one.path is not None)
        return next((one for one in waiting if one is not asking), None)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._drop_path(sequence)
        self._num_preemptions += 1
        self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda one: one.rank)

    def _discard_path(self, sequence: Sequence) -> None:
        if sequence.path is not None:
            self._kv.discard(sequence.path)
        self._drop_path(sequence)

    def _drop_path(self, sequence: Sequence) -> None:
        if sequence.path is not None:
            self._kv.release(sequence.path)
            sequence.path = None
        # Logits belong to computed tokens; without the path they would skip the recomputation.
        sequence.last_logits = None
