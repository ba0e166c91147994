"""Which tokens of which sequences are computed next: decisions only, no torch, no clock.

There is no prefill phase and no decode phase: a step is a number of tokens for each sequence
(vLLM's V1 scheduler). Running sequences come first, those that decode before those that prefill;
then waiting ones are admitted.

Admission is in the order of `Admission`. When the first in this order lacks pages, nobody behind it
is admitted; only who waits for another's prefix steps aside.

A step may be planned before the one before it is read: rows that are launched count as there for
their own sequence, whose next token is then fed to it on the device, and for nobody else.

Progress. The first in rank (priority, then age) is never preempted, and a sequence that could not
fit an empty pool is refused at submission, so the first always gets its rows: by eviction, in which
the pages of idle and waiting sequences take part as what is expected to be used, then by preempting
the last in rank. Admission takes the rows of the whole prompt at once and preempts nobody, so two
prompts never preempt each other chunk by chunk.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from flowforge.engine.admission import Admission
from flowforge.engine.kv.cache import Reserved
from flowforge.engine.kv.sharing import Sharing
from flowforge.engine.output_forecast import OutputForecast
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sequence import Sequence, SequenceState
from flowforge.engine.statistics import SchedulerStatistics
from flowforge.engine.step_plan import Chunk, PlanDraft, StepPlan

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.sharing import SharedRun
    from flowforge.engine.sequence import Generation


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """max_step_tokens: rows of one forward pass. max_running: sequences in one step."""

    max_step_tokens: int
    max_running: int


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
        self._admission = Admission(kv, self._policy, self._forecast)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> list[Sequence]:
        """Sequences in the batch, in order of admission; do not change it."""
        return self._running

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
        self._lose_flight(sequence)
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

    def fits_ahead(self) -> bool:
        """Whether a next step finds pages for all that run without taking any of them.

        Only such a step should be planned before the last one is read: a sequence that is preempted
        in it loses what is in flight for it.
        """
        num_missing = 0
        for sequence in self._running:
            assert sequence.path is not None, "a running sequence has a path"
            num_missing += self._kv.num_missing(sequence.path, len(sequence.tokens) + 1)
        return num_missing <= self._kv.num_available

    def plan_step(self) -> StepPlan:
        """Decide the next step and take the pages for it.

        The caller carries the plan out and then says `committed`, or `abandon`s it; in the order of
        the plans, and a plan may be made before that is said of the last one.
        """
        self._num_steps += 1
        is_busy = self._set_spare_aside()
        draft = PlanDraft(self._limits.max_step_tokens)
        # Decodes before prefills: a long prompt must not make running streams wait.
        order = sorted(self._running, key=lambda one: (not one.is_decoding, one.rank))
        for sequence in order:
            if sequence.state is SequenceState.RUNNING and draft.budget > 0:
                self._plan_running(sequence, draft)
        self._admit(draft, is_busy=is_busy)
        flights = [
            *(chunk.sequence.launch(chunk.stop - chunk.start) for chunk in draft.chunks),
            *(sequence.launch(0) for sequence in draft.ready),
        ]
        return StepPlan(
            tuple(draft.moves),
            tuple(draft.chunks),
            tuple(draft.ready),
            self._shared_in(draft),
            tuple(flights),
            self._kv.take_restored(),
        )

    def committed(self, plan: StepPlan, live: list[bool]) -> None:
        """The rows of the plan are moved and written. live: what `plan.live` says.

        Rows of sequences that wait for them no more are nobody's: they are in pages that may be
        another's by now.
        """
        for chunk, is_live in zip(plan.chunks, live, strict=False):
            if is_live:
                path = chunk.sequence.path
                assert path is not None, "a live sequence has a path"
                self._kv.commit(path, chunk.sequence.tokens[chunk.start : chunk.stop])
                chunk.sequence.land(chunk.stop - chunk.start)
        for sequence, is_live in zip(plan.ready, live[len(plan.chunks) :], strict=True):
            if is_live:
                sequence.land(0)

    def committed_guesses(self, sequence: Sequence) -> None:
        """What a sequence has said since `committed` was guessed, and its rows are written."""
        assert sequence.path is not None, "a planned sequence has a path"
        self._kv.commit(sequence.path, sequence.tokens[sequence.num_computed :])

    def abandon(self, plans: Collection[StepPlan]) -> list[Sequence]:
        """Steps failed, in order, with all that are planned behind the first one.

        Their sequences become idle, and keep no page that the steps may have written; returns
        those. Nobody keeps what the moves of the steps were to bring back.
        """
        failed = {
            sequence: None
            for plan in plans
            for sequence, is_live in zip(plan.sequences, plan.live(), strict=True)
            if is_live
        }
        for sequence in failed:
            self.stop(sequence)
            self._discard_path(sequence)
        if any(plan.moves for plan in plans):
            self._distrust([node for plan in plans for node in plan.restored])
        return list(failed)

    def statistics(self) -> SchedulerStatistics:
        """A snapshot."""
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_idle=len(self._idle),
            num_preemptions=self._num_preemptions,
            num_deferrals=self._num_deferrals,
        )

    def _shared_in(self, draft: PlanDraft) -> tuple[SharedRun, ...]:
        paths = [chunk.sequence.path for chunk in draft.chunks]
        assert None not in paths, "a planned sequence has a path"
        return self._sharing.runs([path for path in paths if path is not None])

    def _plan_running(self, sequence: Sequence, draft: PlanDraft) -> None:
        feed = None
        if sequence.num_unlaunched == 0:
            flight, generation = sequence.flight, sequence.generation
            if flight is None:
                draft.ready.append(sequence)
                return
            assert generation is not None, "a sequence in flight has work"
            if flight.draw is None or generation.num_output + 1 >= generation.max_tokens:
                # All that is left is to read what is in flight.
                return
            feed = flight.draw
        start = sequence.num_launched
        stop = start + 1 if feed is not None else len(sequence.tokens)
        stop = min(stop, start + draft.budget)
        while not self._reserve(sequence, stop, draft):
            last = self._running[-1]
            draft.remove(last)
            self.preempt(last)
            if last is sequence:
                return
        drafted = () if feed is not None else self._tried(sequence, stop, draft)
        draft.add(Chunk(sequence, start, stop, drafted, feed))

    def _tried(self, sequence: Sequence, stop: int, draft: PlanDraft) -> tuple[int, ...]:
        """The guesses that this step tries: with rows and pages that nobody else needs."""
        generation, path = sequence.generation, sequence.path
        if generation is None or not generation.drafted or stop < len(sequence.tokens):
            return ()
        # The last token that may be written is never computed.
        most = min(
            draft.budget - (stop - sequence.num_launched),
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

    def _admit(self, draft: PlanDraft, *, is_busy: bool) -> None:
        if not self._has_room(draft):
            return
        waiting = [one for one in self._waiting if not (is_busy and one.is_spare)]
        for sequence, known_len in self._admission.in_order(waiting, self._num_steps):
            if not self._has_room(draft):
                return
            if self._admission.waits_for_a_prefix(sequence, known_len, self._running):
                self._num_deferrals += 1
                continue
            if not self._admit_one(sequence, known_len, draft):
                return

    def _has_room(self, draft: PlanDraft) -> bool:
        return draft.budget > 0 and len(self._running) < self._limits.max_running

    def _admit_one(self, sequence: Sequence, known_len: int, draft: PlanDraft) -> bool:
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
        num_spared = self._admission.num_spared(sequence, self._running)
        if not self._kv.can_hold(path, sequence.tokens, limit, num_spared):
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
            draft.add_next(sequence)
        return True

    def _reserve(self, sequence: Sequence, num_tokens: int, draft: PlanDraft) -> bool:
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
        self._lose_flight(sequence)
        if sequence.path is not None:
            self._kv.release(sequence.path)
            sequence.path = None
            self._kv.expect(sequence.expectation)

    def _lose_flight(self, sequence: Sequence) -> None:
        """Wait no more for what is in flight for a sequence; its rows are nobody's."""
        if sequence.flight is not None:
            sequence.flight = None
            if sequence.path is not None:
                self._kv.give_back_reserved(sequence.path)

    def _distrust(self, restored: list[Node]) -> None:
        """Moves may not have been carried out: nobody may read what they were to bring back."""
        doubted = set(map(id, restored))
        for sequence in [*self._running, *self._waiting, *self._idle]:
            path = sequence.path
            if path is not None and any(id(node) in doubted for node in path.nodes):
                if sequence.state is SequenceState.RUNNING:
                    self._kv.discard(path)
                    self.preempt(sequence)
                else:
                    self._discard_path(sequence)
        self._kv.distrust_moves(restored)

    @contextmanager
    def _changing(self, sequence: Sequence) -> Generator[None]:
        """Change the tokens of an idle sequence, which no page may be expected for meanwhile."""
        self._kv.withdraw(sequence.expectation)
        yield
        sequence.last_logits = None
        if sequence.path is None:
            self._kv.expect(sequence.expectation)
