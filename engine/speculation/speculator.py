"""Whether guessing pays, for each text: how many tokens are tried, and when it is left off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.speculation.lookup import LookupDrafter
from flowforge.engine.statistics import SpeculationStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.sequence import Generation
    from flowforge.engine.sequence import Sequence as EngineSequence
    from flowforge.engine.speculation.drafter import Drafter

_FIRST_LEN = 3
_MOST_LEN = 1024
_MOST_PAUSED = 256


@dataclass(eq=False, slots=True)
class Speculation:
    """What is known of one text's guesses. text: of the drafter.

    most: tokens that are tried at a time. num_paused: steps that nothing is tried for. pause: how
    many those were the last time.
    """

    text: object
    most: int = _FIRST_LEN
    num_paused: int = 0
    pause: int = 0

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """So many guesses were tried, and so many were right.

        All right: twice as many the next time. None: a pause, each time twice as long.
        """
        if num_accepted == num_drafted:
            self.most = min(_MOST_LEN, 2 * self.most)
            self.pause = 0
        elif num_accepted > 0:
            self.most = num_accepted + 1
            self.pause = 0
        else:
            self.most = _FIRST_LEN
            self.pause = min(_MOST_PAUSED, max(4, 2 * self.pause))
            self.num_paused = self.pause


class Speculator:
    """Asks a drafter for the texts that are being written. Of an engine's core, on its thread.

    most_rows: tokens of one step, guesses included, up to which a row more costs little beside the
    weights that are read anyway; in a fuller step nothing is tried. most_drafted: guesses of one
    text in one step.
    """

    def __init__(
        self, drafter: Drafter | None = None, *, most_rows: int = 16, most_drafted: int = 8
    ) -> None:
        self._drafter = LookupDrafter() if drafter is None else drafter
        self._most_rows = most_rows
        self._most_drafted = most_drafted
        self._num_drafted = 0
        self._num_accepted = 0

    def draft(self, running: Sequence[EngineSequence]) -> None:
        """Guess for those that write; into `Generation.drafted`, for the plan of the next step."""
        writing = [
            (sequence, sequence.generation)
            for sequence in running
            if sequence.generation is not None
            and sequence.generation.num_output > 0
            and sequence.is_decoding
        ]
        for _, generation in writing:
            generation.drafted = ()
        most = self._most_of_each(len(running), len(writing))
        if most == 0:
            return
        asked = [
            (sequence.tokens, generation, speculation)
            for sequence, generation in writing
            if (speculation := self._speculation(sequence, generation)).num_paused == 0
        ]
        guesses = self._drafter.propose(
            [(known.text, tokens, min(most, known.most)) for tokens, _, known in asked]
        )
        for (_, generation, _), guess in zip(asked, guesses, strict=True):
            generation.drafted = tuple(guess)

    def needs_tokens(self, running: Sequence[EngineSequence]) -> bool:
        """Whether `draft` will ask for guesses once every one of these has its next token."""
        writing = [
            sequence.generation
            for sequence in running
            if sequence.generation is not None and sequence.generation.max_tokens > 0
        ]
        if self._most_of_each(len(running), len(writing)) == 0:
            return False
        return any(
            generation.speculation is None or generation.speculation.num_paused <= 1
            for generation in writing
        )

    def verified(self, generation: Generation, num_drafted: int, num_accepted: int) -> None:
        """Of so many guesses so many were right."""
        self._num_drafted += num_drafted
        self._num_accepted += num_accepted
        if generation.speculation is not None:
            generation.speculation.learn(num_drafted, num_accepted)

    def statistics(self) -> SpeculationStatistics:
        """A snapshot."""
        return SpeculationStatistics(self._num_drafted, self._num_accepted)

    def end(self, generation: Generation) -> None:
        """A text is over, however it ended."""
        if generation.speculation is not None:
            self._drafter.end(generation.speculation.text)
            generation.speculation = None

    def learn(self, sequence: EngineSequence, generation: Generation) -> None:
        """A text came to its end by itself: others of its kind may say the same."""
        key = generation.request.history_key
        if key is not None:
            output = sequence.tokens[len(sequence.tokens) - generation.num_output :]
            self._drafter.learn((sequence.namespace, key), output)

    def _most_of_each(self, num_running: int, num_writing: int) -> int:
        room = self._most_rows - num_running
        return 0 if num_writing == 0 else min(self._most_drafted, max(0, room) // num_writing)

    def _speculation(self, sequence: EngineSequence, generation: Generation) -> Speculation:
        known = generation.speculation
        if known is None:
            key = generation.request.history_key
            of_kind = None if key is None else (sequence.namespace, key)
            text = self._drafter.begin(sequence.tokens, of_kind)
            known = generation.speculation = Speculation(text)
        elif known.num_paused > 0:
            known.num_paused -= 1
        return known
