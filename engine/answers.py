"""What sequences say: which tokens are drawn of a step, and what becomes of what it answers.

A token is drawn where the logits are, if the runner does that, and on the host otherwise. Either
way its sequence, its constraint and its reader hear of it here, in the order of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.kv.tokens import common_prefix_len
from flowforge.engine.mask_filling import MaskFiller
from flowforge.engine.row_draw import HostLogits
from flowforge.engine.sampling import known_biases
from flowforge.engine.sequence import GenerationFinished, TokensArrived
from flowforge.engine.step_errors import reader_error
from flowforge.engine.token_choice import choose_tokens, plan_draw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.generations import Generations
    from flowforge.engine.mask_filling import MaskStatistics
    from flowforge.engine.meter import Meter
    from flowforge.engine.model_interface import ChunkLogits, ModelLimits
    from flowforge.engine.prompt_logits import PromptLogits
    from flowforge.engine.row_draw import DrawnToken, LogitsRow, RowDraw
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.scheduler import Scheduler
    from flowforge.engine.sequence import Generation
    from flowforge.engine.sequence import Sequence as EngineSequence
    from flowforge.engine.speculation.speculator import Speculator
    from flowforge.engine.step_plan import Chunk, StepPlan


class DrawList:
    """The draws of one step. rows: for each of the plan's chunks the first row behind it, if any.

    places: for each of the plan's sequences the first of its draws; None where there are none.
    kept: rows whose logits the host needs.
    """

    def __init__(self, plan: StepPlan) -> None:
        self.draws: list[RowDraw] = []
        self.kept: list[int] = []
        self.places: list[int | None] = [None] * len(plan.sequences)
        self.rows: list[int | None] = []
        num_rows = 0
        for chunk in plan.chunks:
            self.rows.append(num_rows if chunk.is_last else None)
            num_rows += 1 + len(chunk.drafted) if chunk.is_last else 0


class Answers:
    """Owns the masks of a step; the rest is borrowed.

    prompt_logits: equal prompts sample from the logits of one; None: each from its own.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        generations: Generations,
        model: ModelLimits,
        meter: Meter,
        clock: Callable[[], float],
        speculator: Speculator | None,
        prompt_logits: PromptLogits | None,
    ) -> None:
        self._scheduler = scheduler
        self._generations = generations
        self._model = model
        self._meter = meter
        self._clock = clock
        self._speculator = speculator
        self._prompt_logits = prompt_logits
        self._masks = MaskFiller(model.vocab_size)

    @property
    def need_tokens(self) -> bool:
        """Whether guesses will be asked for, behind all tokens that there are by then."""
        running = self._scheduler.running
        return self._speculator is not None and self._speculator.needs_tokens(running)

    def guess(self) -> None:
        """Have it guessed what those that run say next, for the plan of the next step."""
        if self._speculator is not None:
            self._speculator.draft(self._scheduler.running)

    def expect(self, plan: StepPlan) -> None:
        """Begin to fill the masks of a step that is about to be launched."""
        last = (chunk.sequence for chunk in plan.chunks if chunk.is_last)
        self._masks.start(sequence.generation for sequence in (*last, *plan.ready))

    def list_draws(self, plan: StepPlan, found: DrawList) -> None:
        """Decide what is drawn of a launched step, when all before it is read.

        Waits for its masks. A generation whose draw cannot be made fails alone.
        """
        num_chunks = len(plan.chunks)
        for idx, (sequence, is_live) in enumerate(zip(plan.sequences, plan.live(), strict=True)):
            generation = sequence.generation
            if not is_live or generation is None:
                continue
            if idx >= num_chunks:
                if generation.max_tokens > 0 and sequence.last_logits is not None:
                    self._add_draw(found, idx, sequence, sequence.last_logits, ())
                continue
            row = found.rows[idx]
            if row is None:
                continue
            is_first = len(sequence.tokens) == generation.prompt_len
            if generation.max_tokens == 0 or (is_first and self._prompt_logits is not None):
                found.kept.append(row)
            drafted = plan.chunks[idx].drafted
            # What a constraint allows behind a guess is known when the guess is said.
            if generation.max_tokens > 0 and not (drafted and generation.request.constraint):
                self._add_draw(found, idx, sequence, row, drafted)

    def kept_logits(self, sequence: EngineSequence) -> npt.NDArray[np.float32] | None:
        """The logits behind a sequence's last token, where they are known."""
        if sequence.last_logits is not None or self._prompt_logits is None:
            return sequence.last_logits
        return self._prompt_logits.find(sequence.namespace, sequence.tokens)

    def take_chunk(self, chunk: Chunk, logits: ChunkLogits, drawn: Sequence[DrawnToken]) -> None:
        """Take what a step says of a sequence that waits for it.

        drawn: behind the chunk and its guesses, in order; empty where nothing was drawn. Sampling
        goes on for as long as what is said is what was guessed.
        """
        sequence, generation = chunk.sequence, chunk.sequence.generation
        self._keep_scores(chunk, logits)
        if not logits.behind:
            return
        self._take(sequence, logits.behind[0], drawn[0] if drawn else None)
        if generation is None or not chunk.drafted:
            return
        assert self._speculator is not None, "guesses are somebody's"
        drafted = [*chunk.drafted]
        while True:
            said = sequence.tokens[chunk.stop :]
            num_right = common_prefix_len(said, drafted)
            if sequence.generation is not generation or num_right < len(said):
                break
            self._scheduler.committed_guesses(sequence)
            row = logits.behind[num_right]
            self._take(sequence, row, drawn[num_right] if drawn else None)
        self._speculator.verified(generation, len(drafted), num_right)

    def take_ready(self, sequence: EngineSequence, drawn: DrawnToken | None) -> None:
        """Take what a sequence says by the logits that were kept for it."""
        if sequence.is_spare and sequence.last_logits is None:
            # All of it is cached, and nobody samples from what is behind it.
            self._generations.finish_prefill(sequence)
            return
        assert sequence.last_logits is not None, "a ready sequence has logits"
        self._take(sequence, HostLogits(sequence.last_logits), drawn)

    def settle(self) -> None:
        """Forget the masks of a step that failed."""
        self._masks.settle()

    def close(self) -> None:
        """End the thread that fills masks. Idempotent."""
        self._masks.close()

    def statistics(self) -> MaskStatistics:
        """Of the masks."""
        return self._masks.statistics()

    def _add_draw(
        self,
        found: DrawList,
        idx: int,
        sequence: EngineSequence,
        source: int | npt.NDArray[np.float32],
        drafted: tuple[int, ...],
    ) -> None:
        generation = sequence.generation
        assert generation is not None and sequence.flight is not None, "it waits for a token"
        constraint, params = generation.request.constraint, generation.request.params
        try:
            known_biases(params, self._model.vocab_size)
            mask = None if constraint is None else self._masks.take(constraint)
            draws = [
                plan_draw(
                    generation,
                    [*sequence.tokens, *drafted[:num_guessed]] if num_guessed else sequence.tokens,
                    source + num_guessed if isinstance(source, int) else source,
                    self._model.eos_token_ids,
                    mask,
                    num_guessed,
                )
                for num_guessed in range(1 + len(drafted))
            ]
        except Exception as error:
            told = reader_error(error, "EN213", "choosing a token failed")
            self._generations.fail(sequence, told)
            return
        sequence.flight.draw = found.places[idx] = len(found.draws)
        found.draws += draws

    def _keep_scores(self, chunk: Chunk, logits: ChunkLogits) -> None:
        generation = chunk.sequence.generation
        if generation is not None and generation.scoring is not None:
            following = (row + 1 for row in chunk.scored_rows)
            generation.scoring.scored.update(zip(following, logits.scored, strict=True))

    def _take(self, sequence: EngineSequence, logits: LogitsRow, drawn: DrawnToken | None) -> None:
        generation = sequence.generation
        if generation is None:
            return
        if len(sequence.tokens) == generation.prompt_len and self._prompt_logits is not None:
            self._share_logits(self._prompt_logits, sequence, logits.on_host())
        if generation.max_tokens == 0:
            sequence.last_logits = logits.on_host()
            scoring = generation.scoring
            scored = () if scoring is None else scoring.in_order(generation.prompt_len)
            usage = self._generations.usage(sequence, generation)
            self._generations.finish(sequence, GenerationFinished("length", usage, scored))
            return
        try:
            constraint = generation.request.constraint
            choice = choose_tokens(
                generation,
                sequence.tokens,
                logits,
                self._model.eos_token_ids,
                None if constraint is None or drawn is not None else self._masks.take(constraint),
                drawn,
            )
        except Exception as error:
            told = reader_error(error, "EN213", "choosing a token failed")
            self._generations.fail(sequence, told)
            return
        self._say(sequence, generation, choice.token_ids, choice.logprobs)
        if choice.end is not None:
            usage = self._generations.usage(sequence, generation)
            self._generations.finish(sequence, GenerationFinished(choice.end, usage))

    def _say(
        self,
        sequence: EngineSequence,
        generation: Generation,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
    ) -> None:
        sequence.last_logits = None
        sequence.tokens += token_ids
        if generation.first_token_at_s is None:
            generation.first_token_at_s = self._clock()
        generation.num_output += len(token_ids)
        self._meter.sampled(sequence.namespace, len(token_ids))
        generation.sink.put(TokensArrived(token_ids, logprobs))

    def _share_logits(
        self, kept: PromptLogits, sequence: EngineSequence, logits: npt.NDArray[np.float32]
    ) -> None:
        """Spare equal prompts, now waiting or to come, the token whose logits they need."""
        kept.keep(sequence.namespace, sequence.tokens, logits)
        for twin in self._scheduler.waiting():
            if twin.namespace == sequence.namespace and twin.tokens == sequence.tokens:
                twin.last_logits = logits
