"""The engine without a thread: sequences in, steps, tokens out. Synchronous and deterministic.

Everything here runs on one thread, the engine's. `Engine` is the async face in front of it; tests
drive this class directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.answers import Answers
from flowforge.engine.capacity import Capacity
from flowforge.engine.generations import Generations
from flowforge.engine.meter import Meter
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.prompt_logits import PromptLogits, most_logit_bytes
from flowforge.engine.sampling import SamplingParams, TokenLogprobs, logprobs_of
from flowforge.engine.scheduler import Scheduler, SchedulerLimits
from flowforge.engine.sequence import (
    Generation,
    GenerationRequest,
    GenerationUsage,
    Scoring,
    Sequence,
    SequenceId,
    SequenceState,
    UpdateSink,
)
from flowforge.engine.statistics import (
    ComputeStatistics,
    EngineStatistics,
    MemoryStatistics,
    SpeculationStatistics,
)
from flowforge.engine.steps import Steps
from flowforge.errors import EngineError, FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Seq

    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.model_interface import ModelLimits, StepRunner
    from flowforge.engine.prefix_rows import KvPrefix, PrefixRows
    from flowforge.engine.speculation.speculator import Speculator
    from flowforge.engine.statistics import NamespaceStatistics
    from flowforge.engine.step_plan import StepPlan

MAX_PAGES_LOOKED_AT = 16_384
"""Looking at each takes about a microsecond, in which no step is computed."""


class EngineCore:
    """Owns the sequences and turns plans into tokens. Not thread-safe.

    clock: seconds, monotonic; only for the times that usages and statistics report. memory,
    compute: what the statistics say of them. prefix_rows: takes prefixes out and puts them in; None
    where the runner's rows are none that can be copied. policy: the best known one if None.
    speculator: guesses what texts say next; None for no guesses. overlaps: a step is launched
    before the last one is read, where that can be; see `Steps`.
    """

    def __init__(
        self,
        runner: StepRunner,
        kv: KvCache,
        limits: SchedulerLimits,
        model: ModelLimits,
        clock: Callable[[], float],
        memory: MemoryStatistics | None = None,
        compute: ComputeStatistics | None = None,
        prefix_rows: PrefixRows | None = None,
        policy: SchedulingPolicy | None = None,
        speculator: Speculator | None = None,
        *,
        overlaps: bool = False,
    ) -> None:
        self._runner = runner
        self._kv = kv
        self._policy = policy or SchedulingPolicy()
        self._scheduler = Scheduler(kv, limits, self._policy)
        self.model = model
        self._capacity = Capacity(model.max_context_len, kv.num_pages * kv.page_size)
        self._clock = clock
        self._sequences: dict[SequenceId, Sequence] = {}
        self._num_arrivals = 0
        self._meter = Meter(kv.page_size)
        self._generations = Generations(self._scheduler, self._meter, clock, speculator)
        self._memory = memory or MemoryStatistics()
        prompt_logits = None
        if self._policy.shares_logits:
            most_bytes = most_logit_bytes(self._memory.kv_bytes)
            prompt_logits = PromptLogits(most_bytes, kv.holds)
        self._answers = Answers(
            self._scheduler,
            self._generations,
            model,
            self._meter,
            clock,
            speculator,
            prompt_logits,
        )
        self._steps = Steps(
            runner,
            self._scheduler,
            self._generations,
            self._answers,
            self._meter,
            clock,
            overlaps=overlaps,
        )
        self._fault: FlowForgeError | None = None
        self._prefix_rows = prefix_rows
        self._speculator = speculator
        self._compute = compute or ComputeStatistics()
        self._started_at_s = clock()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self._steps.has_work

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self._kv.page_size

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can have: the context or the whole pool, whichever is less."""
        return self._capacity.num_tokens

    def watch_plans(self, watcher: Callable[[StepPlan], None]) -> None:
        """Show every plan to `watcher` before it is carried out; it must change nothing."""
        self._steps.watch(watcher)

    def open(self, sequence_id: SequenceId, namespace: Namespace) -> None:
        """A new, empty sequence; `close` it."""
        sequence = Sequence(sequence_id, namespace, [], self._next_arrival())
        self._sequences[sequence_id] = sequence
        self._scheduler.add(sequence)

    def append(self, sequence_id: SequenceId, token_ids: Seq[int]) -> None:
        """Add prompt tokens, each an id of the vocabulary, to an idle sequence."""
        self._scheduler.append(self._idle(sequence_id), token_ids)

    def truncate(self, sequence_id: SequenceId, num_tokens: int) -> None:
        """Forget an idle sequence's tokens behind the first `num_tokens`."""
        self._scheduler.truncate(self._idle(sequence_id), num_tokens)

    def fork(self, parent_id: SequenceId, child_id: SequenceId) -> list[int]:
        """A second sequence with the parent's tokens, wherever the parent is; returns those tokens.

        Full pages are held by both; the partly filled page is copied when the child first runs, and
        logits that the parent has not sampled from yet come along: nothing is computed again.
        """
        parent = self._sequence(parent_id)
        child = Sequence(child_id, parent.namespace, list(parent.tokens), self._next_arrival())
        self._sequences[child_id] = child
        self._scheduler.fork(parent, child)
        self._meter.forks += 1
        return list(child.tokens)

    def generate(
        self,
        sequence_id: SequenceId,
        request: GenerationRequest,
        sink: UpdateSink,
    ) -> None:
        """Sample from an idle sequence until an end; updates go to `sink`.

        Raises EngineError EN201 for an empty sequence, EN202 when prompt and output cannot fit.
        """
        self._submit(sequence_id, request, sink, request.params.max_tokens)

    def prefill(self, sequence_id: SequenceId, sink: UpdateSink, *, is_spare: bool = False) -> None:
        """Compute an idle sequence's tokens and keep the logits behind them, without sampling.

        Forks of it sample from those logits: n samples of one prompt cost one prefill. is_spare:
        only in steps in which there is nothing else to compute. Raises as `generate` does.
        """
        request = GenerationRequest(SamplingParams(), is_spare=is_spare)
        generation = self._submit(sequence_id, request, sink, 0)
        if is_spare and self._kv.num_pages_of(generation.prompt_len) > self._kv.num_free:
            # Nothing is evicted for what nobody waits for.
            self._generations.finish_prefill(self._sequence(sequence_id))

    def score(
        self, sequence_id: SequenceId, token_ids: Seq[int], sink: UpdateSink, num_top: int = 0
    ) -> None:
        """Append tokens to an idle sequence and say how likely each was, in one pass.

        What is cached of the sequence is used, but for the token before the first scored one, whose
        logits are needed; kept logits of a `prefill` spare that one too. Raises as `generate` does.
        """
        sequence = self._idle(sequence_id)
        start, kept = len(sequence.tokens), self._answers.kept_logits(sequence)
        if start == 0 or not token_ids:
            raise EngineError("EN201", "scoring needs a token before and one to score")
        scored: dict[int, TokenLogprobs] = {}
        if kept is not None:
            scored[start] = logprobs_of(kept, token_ids[0], num_top)
        self.append(sequence_id, token_ids)
        try:
            generation = self._submit(sequence_id, GenerationRequest(SamplingParams()), sink, 0)
        except EngineError:
            self.truncate(sequence_id, start)
            raise
        generation.scoring = Scoring(start, num_top, scored)

    def expect_use(
        self, sequence_id: SequenceId, num_steps: float, ready_at_s: float = 0.0
    ) -> None:
        """Say in how many steps of its holder's program a sequence is needed again.

        ready_at_s: when that is expected to be, for what waits for a tool or a person; by a clock
        that all who say it share. Under pressure pages are evicted in the order of priority and of
        these steps, the farthest first, and of equal steps the latest first; unknown (infinity) is
        farther than all, and pages of ended sequences go before them. It changes what is computed
        again, never a result.
        """
        self._scheduler.expect_use(self._sequence(sequence_id), num_steps, ready_at_s)

    def expect_last_use(self, sequence_id: SequenceId) -> None:
        """Say that a sequence's tokens are not needed again after its end.

        When it is closed, pages that served no other sequence are free at once; others stay cached.
        """
        self._scheduler.expect_last_use(self._sequence(sequence_id))

    def abort(self, sequence_id: SequenceId) -> GenerationUsage | None:
        """Stop a generation before the next step; the sequence is idle with the tokens it has.

        Returns what the generation cost so far; None when there is none any more.
        """
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None else self._generations.abort(sequence)

    def preempt(self, sequence_id: SequenceId) -> None:
        """Let a running sequence wait and resume, as when pages are short; others are left alone.

        It changes what is computed again, never a result.
        """
        sequence = self._sequence(sequence_id)
        if sequence.state is SequenceState.RUNNING:
            self._scheduler.preempt(sequence)

    def close(self, sequence_id: SequenceId) -> None:
        """End a sequence in any state. Idempotent; an unknown id was closed before."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        if sequence.generation is not None:
            # Its reader may be another task, and waits.
            error = EngineError("EN204", f"sequence {sequence_id} was closed while generating")
            self._generations.give_up(sequence, error, "aborted")
        self._scheduler.close(sequence)

    def take_out(self, sequence_id: SequenceId) -> KvPrefix | None:
        """A copy of the KV rows of a sequence; None where it holds none."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None or sequence.path is None or self._prefix_rows is None:
            return None
        return self._prefix_rows.take_out(sequence.namespace, sequence.tokens, sequence.path)

    def put_in(self, prefix: KvPrefix) -> int:
        """Cache a prefix that was taken out of an equal engine; see `PrefixRows.put_in`."""
        return 0 if self._prefix_rows is None else self._prefix_rows.put_in(prefix)

    def num_cached(self, namespace: Namespace, tokens: list[int]) -> int:
        """How many of the first tokens are cached."""
        return self._kv.match_len(namespace, tokens, len(tokens))

    def num_tokens(self, sequence_id: SequenceId) -> int:
        """Prompt and output tokens of a sequence."""
        return len(self._sequence(sequence_id).tokens)

    def step(self) -> None:
        """Plan, compute and sample once. An error ends this step's generations and no others.

        With overlap a step's tokens come with the next call: `has_work` says that there is one.
        """
        self._steps.step()

    def close_all(self, error: FlowForgeError) -> None:
        """End every sequence; generations under way get `error`."""
        self.fail_all(error)
        for sequence_id in list(self._sequences):
            self.close(sequence_id)

    def fail_all(self, error: FlowForgeError) -> None:
        """Tell every generation under way that it is over, begin no other, and touch no page.

        After a defect in the bookkeeping nothing of it can be relied on, and its readers wait.
        """
        self._fault = error
        for sequence in self._sequences.values():
            if sequence.generation is not None:
                self._generations.give_up(sequence, error, "failed")
        self._steps.forget()
        self._answers.close()

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        meter = self._meter
        return EngineStatistics(
            kv=self._kv.statistics(),
            scheduler=self._scheduler.statistics(),
            masks=self._answers.statistics(),
            requests=meter.requests(),
            prefix_cache=meter.prefix_cache(),
            reads=meter.reads(self._runner.num_rows_read),
            latencies=meter.latencies(),
            steps=meter.steps(),
            memory=self._memory,
            compute=self._compute,
            num_steps=meter.num_steps,
            prefilled_tokens=meter.prefilled_tokens,
            generated_tokens=meter.generated_tokens,
            recomputed_tokens=meter.recomputed_tokens,
            forks=meter.forks,
            speculation=(
                SpeculationStatistics()
                if self._speculator is None
                else self._speculator.statistics()
            ),
            uptime_s=self._clock() - self._started_at_s,
        )

    def page_uses(self) -> str:
        """See `KvCache.page_uses`; empty where more than `MAX_PAGES_LOOKED_AT` are in use."""
        counted = self._kv.statistics()
        num_used = counted.pages_total - counted.pages_free
        return self._kv.page_uses() if num_used <= MAX_PAGES_LOOKED_AT else ""

    def namespace_statistics(self) -> dict[Namespace, NamespaceStatistics]:
        """What the namespaces used last asked for; see `Meter.namespaces`."""
        return self._meter.namespaces()

    def check_invariants(self) -> None:
        """AssertionError when the bookkeeping is broken; see `KvCache.check_invariants`."""
        self._kv.check_invariants()
        for sequence in self._sequences.values():
            assert sequence.state is not SequenceState.CLOSED, "a closed sequence is still known"
            assert sequence.num_computed <= len(sequence.tokens), "more computed than there is"

    def _submit(
        self,
        sequence_id: SequenceId,
        request: GenerationRequest,
        sink: UpdateSink,
        max_tokens: int | None,
    ) -> Generation:
        sequence = self._idle(sequence_id)
        prompt_len = len(sequence.tokens)
        if prompt_len == 0:
            raise EngineError("EN201", "an empty prompt has nothing to continue")
        room = self.capacity - prompt_len
        if room < 1 or (max_tokens or 0) > room:
            raise self._capacity.misfit(prompt_len, max_tokens)
        most = room if max_tokens is None else max_tokens
        if request.constraint is not None:
            request.constraint.limit_to(most)
        sequence.arrival = self._next_arrival()
        sequence.generation = Generation(
            request=request,
            sink=sink,
            prompt_len=prompt_len,
            max_tokens=most,
            submitted_at_s=self._clock(),
        )
        sequence.last_logits = self._answers.kept_logits(sequence)
        self._scheduler.start(sequence)
        self._meter.submitted += 1
        return sequence.generation

    def _sequence(self, sequence_id: SequenceId) -> Sequence:
        if self._fault is not None:
            raise self._fault
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            raise EngineError("EN204", f"sequence {sequence_id} is closed")
        return sequence

    def _idle(self, sequence_id: SequenceId) -> Sequence:
        sequence = self._sequence(sequence_id)
        if sequence.state is not SequenceState.IDLE:
            raise EngineError(
                "EN205",
                f"sequence {sequence_id} is generating",
                help="wait for its end, or fork it",
            )
        return sequence

    def _next_arrival(self) -> int:
        self._num_arrivals += 1
        return self._num_arrivals
