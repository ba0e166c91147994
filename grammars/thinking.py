"""Thoughts before an answer: a part of its own, with a budget of its own, that no form holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

from flowforge.grammars.calls_or_form import CallsOrForm
from flowforge.grammars.closing_state import ClosingState
from flowforge.grammars.compilation import compile_mask_grammar
from flowforge.grammars.tool_formats.lark_text import LarkText

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flowforge.grammars.constraint import CompiledConstraint, ConstraintState
    from flowforge.grammars.vocabulary import Vocabulary

    AnswerState: TypeAlias = ConstraintState | ClosingState | CallsOrForm

# A thought is never ended within a character, of which three more tokens may be owed.
_MOST_OWED = 3


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """How one model marks its thoughts, in tokens.

    opening_ids: empty where the prompt has opened them. closing: the text of closing_ids.
    bridge_ids: what stands between the thoughts and the answer, and is part of neither.
    """

    opening_ids: tuple[int, ...]
    closing: str
    closing_ids: tuple[int, ...]
    bridge_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thoughts of at most `budget` tokens, but for the end of a character that was begun."""

    marks: ThinkingMarks
    budget: int

    @property
    def most_tokens(self) -> int:
        """Tokens before the answer, at most."""
        marks = self.marks
        num_marks = len(marks.opening_ids) + len(marks.closing_ids) + len(marks.bridge_ids)
        return num_marks + self.budget + _MOST_OWED


def compile_thoughts(closing: str, vocabulary: Vocabulary) -> CompiledConstraint:
    """Any text up to the first `closing`, which it takes in; control tokens in that are meant."""
    lark = LarkText(vocabulary.control_ids)
    lark.start(lark.until(closing))
    return compile_mask_grammar(str(lark), vocabulary)


class ThinkingState:
    """Thoughts, and behind them an answer under a constraint of its own, or none.

    Owns the states it is given; fits `engine.constraint` by shape.
    """

    def __init__(
        self,
        thinking: Thinking,
        thoughts: ConstraintState,
        answer: AnswerState | None,
        max_tokens: int | None = None,
    ) -> None:
        """thoughts: fresh, of `compile_thoughts`. max_tokens: of the answer alone."""
        self._thinking = thinking
        self._thoughts = thoughts
        self._answer = answer
        self._max_tokens = max_tokens
        # Tokens that must come next; behind the last of them follow the thoughts, or the answer.
        self._owed = thinking.marks.opening_ids
        self._is_thinking = True
        self._num_thoughts = 0
        self._num_answered = 0
        self._room: int | None = None

    def __repr__(self) -> str:
        return f"ThinkingState(thoughts={self._num_thoughts} answering={self._has_thought()})"

    @property
    def was_closed(self) -> bool:
        """Whether the answer's end is not the model's own."""
        answer = self._answer
        return isinstance(answer, ClosingState | CallsOrForm) and answer.was_closed

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return self._has_thought() and (self._answer is None or self._answer.is_accepting)

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing may follow."""
        return self._has_thought() and self._answer is not None and self._answer.is_complete

    def limit_to(self, num_tokens: int) -> None:
        """See `engine.constraint`."""
        self._room = num_tokens
        if self._has_thought():
            self._limit_answer()

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """See `ConstraintState.fill_mask`. An answer without a constraint allows every token."""
        if self._owed:
            out[:] = 0
            out[self._owed[0] // 32] = 1 << self._owed[0] % 32
        elif self._is_thinking:
            self._thoughts.fill_mask(out)
        elif self._answer is not None:
            self._answer.fill_mask(out)
        else:
            out[:] = 0xFFFFFFFF

    def advance(self, token_id: int) -> bool:
        """See `engine.constraint`."""
        if self._has_thought():
            is_taken = self._answer is None or self._answer.advance(token_id)
            self._num_answered += is_taken
            self._count(is_taken)
            return is_taken
        if self._owed:
            if token_id != self._owed[0]:
                raise ValueError(f"token {token_id} is not allowed here")
            self._owed = self._owed[1:]
        else:
            self._think(token_id)
        self._count(True)
        if self._has_thought():
            self._limit_answer()
        return True

    def forced_tokens(self) -> list[int]:
        """See `ConstraintState.forced_tokens`."""
        if self._owed:
            return list(self._owed)
        if self._is_thinking or self._answer is None:
            return []
        return self._answer.forced_tokens()

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        answer = None if self._answer is None else self._answer.fork()
        copy = type(self)(self._thinking, self._thoughts.fork(), answer, self._max_tokens)
        copy._owed, copy._is_thinking = self._owed, self._is_thinking
        copy._num_thoughts, copy._num_answered = self._num_thoughts, self._num_answered
        copy._room = self._room
        return copy

    def _has_thought(self) -> bool:
        return not self._is_thinking and not self._owed

    def _think(self, token_id: int) -> None:
        marks = self._thinking.marks
        self._thoughts.advance(token_id)
        self._num_thoughts += 1
        if self._thoughts.is_accepting:
            self._is_thinking, self._owed = False, marks.bridge_ids
        elif self._num_thoughts >= self._thinking.budget and self._thoughts.allows(
            marks.closing_ids[0]
        ):
            self._is_thinking, self._owed = False, marks.closing_ids + marks.bridge_ids

    def _count(self, is_taken: bool) -> None:
        if self._room is not None:
            self._room -= is_taken

    def _limit_answer(self) -> None:
        if self._answer is None or self._room is None:
            return
        room = self._room
        if self._max_tokens is not None:
            room = min(room, self._max_tokens - self._num_answered)
        self._answer.limit_to(room)
