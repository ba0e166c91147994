"""Which tokens of which sequences are computed next: decisions only, no torch, no clock.

There is no prefill phase and no decode phase: a step is a number of tokens for each sequence
(vLLM's V1 scheduler). Running sequences come first, those that decode before those that prefill;
then waiting ones are admitted.

Order of admission. Priority, then the longest cached prefix (SGLang); every step of waiting counts
as `_AGE_BONUS` tokens of it, every token that its program still writes behind it as
`_CHAIN_BONUS`. Of equal priority a sequence is overtaken only by those that come within
`most of prefix and chain / _AGE_BONUS` steps after it, so none starves. When the first in this
order lacks pages, nobody behind it is admitted; only who waits for another's prefix steps aside.

Progress. The first in rank (priority, then age) is never preempted, and a sequence that could not
fit an empty pool is refused at submission, so the first always gets its rows: by eviction, in which
the pages of idle and waiting sequences take part as what is expected to be used, then by preempting
the last in rank. Admission takes the rows of the whole prompt at once and preempts nobody, so two
prompts never preempt each other chunk by chunk.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from flowforge.engine.kv.cache import Reserved
from flowforge.engine.kv.sharing import SharedRun, Sharing
from flowforge.engine.kv.tokens import common_prefix_len
from flowforge.engine.output_forecast import OutputForecast
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sequence import Sequence, SequenceState

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    from flowforge.engine.kv.cache import KvCache, RowMove
    from flowforge.engine.sequence import Generation


# Tokens of cached prefix that a step of waiting is worth.
_AGE_BONUS = 32
# And a token that the longest chain of its program writes behind it: `flowforge bench workflows`.
_CHAIN_BONUS = 2
# Only so many, the first in rank, are ordered by prefix: looking prefixes up is not free.
_MOST_ORDERED = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of a sequence are computed in this step.

    drafted: guesses of what follows them, computed as if they did; with the last chunk only.
    """

    sequence: Sequence
    start: int
    stop: int
    drafted: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Behind the last row that is computed."""
        return self.stop + len(self.drafted)

    @property
    def token_ids(self) -> list[int]:
        """The tokens whose rows are computed."""
        return [*self.sequence.tokens[self.start : self.stop], *self.drafted]

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
    """moves, in order, then one forward pass over all chunks; then `ready` sample without one.

    shared: the pages that several chunks read; readers are indices of chunks.
    """

    moves: tuple[RowMove, ...]
    chunks: tuple[Chunk, ...]
    ready: tuple[Sequence, ...]
    shared: tuple[SharedRun, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.chunks or self.ready or self.moves)


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
    moves: list[RowMove] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    ready: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, drafted: tuple[int, ...] = ()) -> None:
        start = sequence.num_computed
        stop = min(len(sequence.tokens), start + self.budget)
        chunk = Chunk(sequence, start, stop, drafted)
        self.budget -= chunk.end - chunk.start
        self.chunks.append(chunk)

    def remove(self, sequence: Sequence) -> None:
        for chunk in self.chunks:
            if chunk.sequence is sequence:
                self.budget += chunk.end - chunk.start
                self.chunks.remove(chunk)
                return


class Scheduler:
    """Owns the states of sequences and their paths; the only one to open, grow or release them."""

    def __init__(
        self, kv: KvCache, limits: SchedulerLimits, policy: SchedulingPolicy | None = None
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._policy = policy or SchedulingPolicy()
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._idle: dict[Sequence, None] = {}
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_deferrals = 0
        self._sharing = Sharing()
        self._forecast = OutputForecast()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> list[Sequence]:
        """Sequences in the batch, in order of admission; do not change it."""
        return self._running

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    def waiting(self) -> Iterator[Sequence]:
        """Sequences that have work and are not admitted, in order of rank."""
        return iter(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence under care, idle. It holds nothing: its expectation is placed."""
        self._kv.expect(sequence.expectation)
        self._idle[sequence] = None

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Take `child` under care, holding the full pages of `parent`."""
        self.add(child)
        if parent.path is not None:
            child.path = self._kv.fork(parent.path)
            self._kv.withdraw(child.expectation)
        child.last_logits = parent.last_logits

    def start(self, sequence: Sequence) -> None:
        """An idle sequence has work now."""
        assert sequence.state is SequenceState.IDLE, f"{sequence} is busy"
        del self._idle[sequence]
        sequence.started_step = self._num_steps
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
        self._set_due(sequence, None)
        self._idle[sequence] = None

    def learn_from(self, generation: Generation) -> None:
        """A generation came to its end by itself: it says how far others will go."""
        self._forecast.ended(generation)

    def close(self, sequence: Sequence) -> None:
        """End a sequence in any state and give its pages back. Idempotent."""
        if sequence.state is SequenceState.CLOSED:
            return
        self.stop(sequence)
        del self._idle[sequence]
        self._drop_path(sequence)
        self._kv.conclude(sequence.expectation)
        sequence.state = SequenceState.CLOSED

    def append(self, sequence: Sequence, token_ids: Collection[int]) -> None:
        """Add tokens to an idle sequence."""
        assert sequence.state is SequenceState.IDLE, f"{sequence} is busy"
        if token_ids:
            with self._changing(sequence):
                sequence.tokens.extend(token_ids)

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Forget an idle sequence's tokens behind `num_tokens`; the pages stay cached."""
        assert sequence.state is SequenceState.IDLE, f"{sequence} is busy"
        if num_tokens < len(sequence.tokens):
            with self._changing(sequence):
                del sequence.tokens[num_tokens:]
                if sequence.path is not None and sequence.num_computed > num_tokens:
                    self._kv.release(sequence.path)
                    sequence.path = None

    def expect_use(self, sequence: Sequence, num_steps: float, ready_at_s: float) -> None:
        """Its holder's program needs a sequence again in so many steps, and about then."""
        if self._policy.eviction == "lru":
            return
        sequence.expectation.num_steps = num_steps
        sequence.expectation.ready_at_s = ready_at_s
        self._kv.restate(sequence.expectation)

    def expect_last_use(self, sequence: Sequence) -> None:
        """Its holder needs a sequence's tokens until its end and never again."""
        if self._policy.eviction == "lru" or not self._policy.frees_last_uses:
            return
        sequence.expectation.is_last = True

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages; it waits and resumes from what is still cached then."""
        assert sequence.state is SequenceState.RUNNING, f"{sequence} does not run"
        self._running.remove(sequence)
        self._drop_path(sequence)
        self._num_preemptions += 1
        self._enqueue(sequence)

    def plan_step(self) -> StepPlan:
        """Decide the next step and take the pages for it.

        The caller carries the plan out and then says `committed`, or `abandon`s it.
        """
        self._num_steps += 1
        is_busy = self._set_spare_aside()
        draft = _Draft(self._limits.max_step_tokens)
        # Decodes before prefills: a long prompt must not make running streams wait.
        order = sorted(self._running, key=lambda one: (not one.is_decoding, one.rank))
        for sequence in order:
            if sequence.state is SequenceState.RUNNING and draft.budget > 0:
                self._plan_running(sequence, draft)
        self._admit(draft, is_busy=is_busy)
        return StepPlan(
            tuple(draft.moves), tuple(draft.chunks), tuple(draft.ready), self._shared_in(draft)
        )

    def committed(self, plan: StepPlan) -> None:
        """The rows of the plan are moved and written."""
        self._kv.moved()
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert sequence.path is not None, "a planned sequence has a path"
            self._kv.commit(sequence.path, sequence.tokens[chunk.start : chunk.stop])

    def committed_guesses(self, sequence: Sequence) -> None:
        """What a sequence has said since `committed` was guessed, and its rows are written."""
        assert sequence.path is not None, "a planned sequence has a path"
        self._kv.commit(sequence.path, sequence.tokens[sequence.num_computed :])

    def abandon(self, plan: StepPlan) -> None:
        """The step failed: its sequences become idle, and keep no page that it may have written."""
        for sequence in [*(chunk.sequence for chunk in plan.chunks), *plan.ready]:
            self.stop(sequence)
            self._discard_path(sequence)
        if plan.moves:
            self._kv.distrust_moves()

    def statistics(self) -> SchedulerStatistics:
        """A snapshot."""
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_idle=len(self._idle),
            num_preemptions=self._num_preemptions,
            num_deferrals=self._num_deferrals,
        )

    def _shared_in(self, draft: _Draft) -> tuple[SharedRun, ...]:
        paths = [chunk.sequence.path for chunk in draft.chunks]
        assert None not in paths, "a planned sequence has a path"
        return self._sharing.runs([path for path in paths if path is not None])

    def _plan_running(self, sequence: Sequence, draft: _Draft) -> None:
        if sequence.num_pending == 0:
            draft.ready.append(sequence)
            return
        stop = min(len(sequence.tokens), sequence.num_computed + draft.budget)
        while not self._reserve(sequence, stop, draft):
            last = self._running[-1]
            draft.remove(last)
            self.preempt(last)
            if last is sequence:
                return
        draft.add(sequence, self._tried(sequence, stop, draft))

    def _tried(self, sequence: Sequence, stop: int, draft: _Draft) -> tuple[int, ...]:
        """The guesses that this step tries: with rows and pages that nobody else needs."""
        generation, path = sequence.generation, sequence.path
        if generation is None or not generation.drafted or stop < len(sequence.tokens):
            return ()
        # The last token that may be written is never computed.
        most = min(
            draft.budget - (stop - sequence.num_computed),
            generation.max_tokens - generation.num_output - 1,
        )
        tried = generation.drafted[: max(0, most)]
        assert path is not None, "a running sequence has a path"
        if not tried or self._kv.num_missing(path, stop + len(tried)) > self._kv.num_free:
            return ()
        self._kv.reserve(path, stop + len(tried))
        draft.moves += self._kv.take_moves()
        return tried

    def _set_spare_aside(self) -> bool:
        """Whether anything is computed that somebody waits for; what nobody does then waits."""
        if all(one.is_spare for one in chain(self._running, self._waiting)):
            return False
        for one in [one for one in self._running if one.is_spare]:
            self._running.remove(one)
            self._drop_path(one)
            self._enqueue(one)
        return True

    def _admit(self, draft: _Draft, *, is_busy: bool) -> None:
        if not self._has_room(draft):
            return
        for sequence, known_len in self._in_order_of_admission(list(self._waiting)):
            if not self._has_room(draft):
                return
            if is_busy and sequence.is_spare:
                continue
            if self._waits_for_a_prefix(sequence, known_len):
                self._num_deferrals += 1
                continue
            if not self._admit_one(sequence, known_len, draft):
                return

    def _has_room(self, draft: _Draft) -> bool:
        return draft.budget > 0 and len(self._running) < self._limits.max_running

    def _in_order_of_admission(self, waiting: list[Sequence]) -> Iterator[tuple[Sequence, int]]:
        """The next one first, each with the number of tokens that are cached of it."""

        def place(entry: tuple[Sequence, int]) -> tuple[int, int, int]:
            sequence, known_len = entry
            age = self._num_steps - sequence.started_step
            priority, arrival = sequence.rank
            if self._policy.admission == "arrival":
                return priority, 0, arrival
            worth = known_len + _AGE_BONUS * age + _CHAIN_BONUS * self._num_following(sequence)
            return priority, -worth, arrival

        first = [(one, self._known_len(one)) for one in waiting[:_MOST_ORDERED]]
        yield from sorted(first, key=place)
        for sequence in waiting[_MOST_ORDERED:]:
            yield sequence, self._known_len(sequence)

    def _num_following(self, sequence: Sequence) -> int:
        if sequence.generation is None or not self._policy.critical_first:
            return 0
        return sequence.generation.request.num_following

    def _known_len(self, sequence: Sequence) -> int:
        limit = sequence.num_reusable
        if self._policy.reuse == "none":
            return 0
        known_len = self._kv.match_len(sequence.namespace, sequence.tokens, limit)
        return known_len if self._policy.reuse == "tokens" else self._whole_pages(known_len)

    def _whole_pages(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self._kv.page_size

    def _admit_one(self, sequence: Sequence, known_len: int, draft: _Draft) -> bool:
        path, limit = sequence.path, sequence.num_reusable
        if self._policy.reuse != "tokens":
            limit = min(limit, known_len)
        # Of what is computed, tokens whose logits are wanted are computed once more. And behind a
        # partly filled page a path cannot go on along the tree.
        if path is not None and (
            path.num_tokens > limit or (path.tail is not None and path.num_tokens < known_len)
        ):
            self._drop_path(sequence)
            path = None
        if path is None:
            path = sequence.path = self._kv.open(sequence.namespace)
            self._kv.withdraw(sequence.expectation)
        if self._kv.num_missing(path, len(sequence.tokens)) > self._kv.num_free:
            self._hold_only(sequence)
        if not self._kv.can_hold(path, sequence.tokens, limit, self._num_spared(sequence)):
            self._drop_path(sequence)
            return False
        copy = self._kv.advance(path, sequence.tokens, limit)
        draft.moves += self._kv.take_moves()
        if copy is not None:
            draft.moves.append(copy)
        reserved = self._kv.reserve(path, len(sequence.tokens))
        draft.moves += self._kv.take_moves()
        assert isinstance(reserved, Reserved), "what can be held was not"
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

    def _num_spared(self, sequence: Sequence) -> int:
        """Pages for what the running ones and this one will still write; none for it alone."""
        if not self._running or not self._policy.spares_output:
            return 0
        own_len = len(sequence.tokens)
        own = self._kv.num_pages_of(own_len + self._forecast.num_left(sequence.generation))
        num_spared = own - self._kv.num_pages_of(own_len)
        for other in self._running:
            assert other.path is not None, "a running sequence has a path"
            most = len(other.tokens) + self._forecast.num_left(other.generation)
            num_spared += self._kv.num_missing(other.path, most)
        return num_spared

    def _waits_for_a_prefix(self, sequence: Sequence, known_len: int) -> bool:
        """Whether a running sequence is about to compute tokens that this one needs as well.

        In-batch duplicates (SGLang, TensorRT-LLM): the first fills, the rest wait for it and hit.
        """
        if not self._policy.spares_duplicates or self._policy.reuse == "none":
            return False
        limit = sequence.num_reusable
        for other in self._running:
            if other.num_pending == 0 or other.namespace != sequence.namespace:
                continue
            shared = min(common_prefix_len(sequence.tokens, other.tokens), limit)
            if self._policy.reuse == "pages":
                shared = self._whole_pages(shared)
            if shared > max(other.num_computed, known_len):
                return True
        return False

    def _reserve(self, sequence: Sequence, num_tokens: int, draft: _Draft) -> bool:
        """Get rows for a running sequence, by eviction if it must be."""
        path = sequence.path
        assert path is not None, "rows are reserved on a path"
        if self._kv.num_missing(path, num_tokens) > self._kv.num_free:
            self._hold_only(sequence)
        reserved = self._kv.reserve(path, num_tokens)
        draft.moves += self._kv.take_moves()
        return isinstance(reserved, Reserved)

    def _hold_only(self, sequence: Sequence) -> None:
        """Pages are short: of those that do not run, none but this one holds any."""
        for other in chain(self._idle, self._waiting):
            if other is not sequence:
                self._drop_path(other)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._set_due(sequence, sequence.started_step)
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda one: one.rank)

    def _set_due(self, sequence: Sequence, since: int | None) -> None:
        expectation = sequence.expectation
        expectation.due_since = since
        if sequence.generation is not None:
            expectation.priority = sequence.generation.request.priority
        self._kv.restate(expectation)

    def _discard_path(self, sequence: Sequence) -> None:
        if sequence.path is not None:
            self._kv.discard(sequence.path)
        self._drop_path(sequence)
        sequence.last_logits = None

    def _drop_path(self, sequence: Sequence) -> None:
        """Hold nothing for a sequence any more, but let its next use count in eviction."""
        if sequence.path is not None:
            self._kv.release(sequence.path)
            sequence.path = None
            self._kv.expect(sequence.expectation)

    @contextmanager
    def _changing(self, sequence: Sequence) -> Generator[None]:
        """Change the tokens of an idle sequence, which no page may be expected for meanwhile."""
        self._kv.withdraw(sequence.expectation)
        yield
        sequence.last_logits = None
        if sequence.path is None:
            self._kv.expect(sequence.expectation)
