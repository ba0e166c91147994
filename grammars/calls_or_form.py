"""An answer that is calls of tools or a text of a form: two constraints until one is left."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Self

from flowforge.grammars.closing_state import ClosingState

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flowforge.grammars.constraint import ConstraintState


class CallsOrForm:
    """What may come next is what either of two allows; a token that one refuses leaves the other.

    A text that both allow to its end is calls. Owns the states it is given; fits
    `engine.constraint` by shape.
    """

    def __init__(
        self, calls: ConstraintState | None, form: ConstraintState | ClosingState | None
    ) -> None:
        """calls: of an answer that begins with a call. At least one of the two is given."""
        self._calls = calls
        self._form = form

    def __repr__(self) -> str:
        return f"CallsOrForm({self._calls!r}, {self._form!r})"

    @property
    def was_closed(self) -> bool:
        """Whether the output's end is not the model's own."""
        is_form = self._calls is None or not self._calls.is_accepting
        return is_form and isinstance(self._form, ClosingState) and self._form.was_closed

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return any(state.is_accepting for state in self._states())

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return all(state.is_complete for state in self._states())

    def limit_to(self, num_tokens: int) -> None:
        """See `engine.constraint`."""
        for state in self._states():
            state.limit_to(num_tokens)

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """See `ConstraintState.fill_mask`."""
        first, *others = self._states()
        first.fill_mask(out)
        for state in others:
            mask = out.copy()
            state.fill_mask(mask)
            out |= mask

    def advance(self, token_id: int) -> bool:
        """See `engine.constraint`."""
        calls = self._calls
        if calls is None or not calls.allows(token_id):
            if self._form is None:
                raise ValueError(f"token {token_id} is not allowed here")
            is_taken = self._form.advance(token_id)
            self._calls = None if is_taken else calls
            return is_taken
        calls.advance(token_id)
        if self._form is not None and not _takes(self._form, token_id):
            self._form = None
        return True

    def forced_tokens(self) -> list[int]:
        """See `ConstraintState.forced_tokens`: those that both force."""
        first, *others = (state.forced_tokens() for state in self._states())
        if not others:
            return first
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, others[0], strict=False))
        return [token_id for token_id, _ in pairs]

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        calls, form = self._calls, self._form
        return type(self)(
            None if calls is None else calls.fork(), None if form is None else form.fork()
        )

    def _states(self) -> list[ConstraintState | ClosingState]:
        return [state for state in (self._calls, self._form) if state is not None]


def _takes(state: ConstraintState | ClosingState, token_id: int) -> bool:
    try:
        return state.advance(token_id)
    except ValueError:
        return False
