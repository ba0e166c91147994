"""How generations end, and what they cost: the one place where a generation leaves its sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.sequence import GenerationFailed, GenerationFinished, GenerationUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.meter import Meter, Outcome
    from flowforge.engine.scheduler import Scheduler
    from flowforge.engine.sequence import Generation, Sequence
    from flowforge.engine.speculation.speculator import Speculator


class Generations:
    """Tells readers, the scheduler, the books and who guesses. All borrowed but the endings."""

    def __init__(
        self,
        scheduler: Scheduler,
        meter: Meter,
        clock: Callable[[], float],
        speculator: Speculator | None,
    ) -> None:
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        self._speculator = speculator

    def finish(self, sequence: Sequence, update: GenerationFinished | GenerationFailed) -> None:
        """End a generation with its last update; its sequence is idle."""
        generation = sequence.generation
        assert generation is not None and update.usage is not None, "only a generation can end"
        outcome: Outcome = "failed"
        if isinstance(update, GenerationFinished):
            outcome = update.reason
            self._scheduler.learn_from(generation)
            if self._speculator is not None:
                self._speculator.learn(sequence, generation)
        self._forget(sequence, update.usage, outcome)
        self._scheduler.stop(sequence)
        generation.sink.put(update)

    def finish_prefill(self, sequence: Sequence) -> None:
        """End a prefill without the logits behind it."""
        assert sequence.generation is not None, "only a generation can end"
        usage = self.usage(sequence, sequence.generation)
        self.finish(sequence, GenerationFinished("length", usage))

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a generation by an error that is its own."""
        assert sequence.generation is not None, "only a generation can fail"
        usage = self.usage(sequence, sequence.generation)
        self.finish(sequence, GenerationFailed(error, usage))

    def give_up(self, sequence: Sequence, error: Exception, outcome: Outcome) -> None:
        """Tell a generation's reader why it ends; leaves the sequence's state alone."""
        generation = sequence.generation
        assert generation is not None, "only a generation can be given up"
        usage = self.usage(sequence, generation)
        self._forget(sequence, usage, outcome)
        generation.sink.put(GenerationFailed(error, usage))

    def abort(self, sequence: Sequence) -> GenerationUsage | None:
        """Stop a generation without a word to its reader; what it cost, None where there is none.

        Its sequence is idle, with the tokens that were told of.
        """
        generation = sequence.generation
        if generation is None:
            return None
        usage = self.usage(sequence, generation)
        self._scheduler.stop(sequence)
        self._forget(sequence, usage, "aborted")
        self.take_back_scored(sequence, generation)
        return usage

    def take_back_scored(self, sequence: Sequence, generation: Generation) -> None:
        """Tokens whose likelihood was not found are not appended to an idle sequence."""
        if generation.scoring is not None:
            self._scheduler.truncate(sequence, generation.scoring.start)

    def usage(self, sequence: Sequence, generation: Generation) -> GenerationUsage:
        """What a generation cost so far."""
        now = self._clock()
        first = generation.first_token_at_s or now
        return GenerationUsage(
            prompt_tokens=generation.prompt_len,
            reused_tokens=generation.reused_tokens or 0,
            prefilled_tokens=generation.prefilled_tokens,
            output_tokens=generation.num_output,
            written_output_tokens=max(0, sequence.num_computed - generation.prompt_len),
            ttft_s=first - generation.submitted_at_s,
            total_s=now - generation.submitted_at_s,
        )

    def _forget(self, sequence: Sequence, usage: GenerationUsage, outcome: Outcome) -> None:
        if self._speculator is not None and sequence.generation is not None:
            self._speculator.end(sequence.generation)
        sequence.generation = None
        self._meter.ended(usage, outcome)
