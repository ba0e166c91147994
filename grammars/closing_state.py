"""An output that ends before it is cut: near the end of its budget it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flowforge.grammars.constraint import ConstraintState

# From this many tokens before the cut on an ending is looked for.
_HORIZON = 64
# With so much more room than it takes, it is looked for again only after a few tokens: a search
# that finds an ending takes a millisecond, one that finds none a tenth of a second.
_MARGIN = 12
_STRIDE = 8
# After so many tokens that leave no room for an ending, the model is not asked again.
_MAX_REFUSALS = 4


class ClosingState:
    """A constraint's state that keeps room for a short ending and takes it when nothing else fits.

    Where no ending was found the output goes on, and may be cut as any other. Owns the state it is
    given; fits `engine.constraint` by shape.
    """

    def __init__(self, state: ConstraintState, room: int | None = None) -> None:
        """Take over `state`. room: tokens until the cut, if known; `limit_to` says it too."""
        self._state = state
        self._room = room
        # Of the state as it is now; None where there is none, or none was looked for.
        self._ending: tuple[int, ...] | None = None
        self._next_search = _HORIZON
        self._refused: list[int] = []
        self._is_closing = False

    def __repr__(self) -> str:
        return f"ClosingState(room={self._room} closing={self._is_closing})"

    @property
    def was_closed(self) -> bool:
        """Whether the output's end is not the model's own."""
        return self._is_closing

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return self._state.is_accepting

    @property
    def is_complete(self) -> bool:
        """Whether the output is whole: by itself, or because it was closed."""
        return self._state.is_complete or (self._is_closing and not self._ending)

    def limit_to(self, num_tokens: int) -> None:
        """See `engine.constraint`."""
        self._room = num_tokens
        self._look_for_ending()

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """See `ConstraintState.fill_mask`."""
        self._state.fill_mask(out)
        if self._is_closing:
            out[:] = 0
            for token_id in (self._ending or ())[:1] or self._state.eos_ids:
                out[token_id // 32] |= 1 << token_id % 32
            return
        for token_id in self._refused:
            out[token_id // 32] &= ~(1 << token_id % 32) & 0xFFFFFFFF

    def advance(self, token_id: int) -> bool:
        """See `engine.constraint`: False for a token after which no ending would fit any more."""
        if self._is_closing and self._ending:
            if token_id != self._ending[0]:
                raise ValueError(f"token {token_id} is not allowed here")
            self._ending = self._ending[1:]
            return self._state.advance(token_id)
        self._state.advance(token_id)
        if self._room is not None and not self._state.is_complete:
            self._room -= 1
            ready = self._ending
            has_searched = self._look_for_ending(token_id)
            if has_searched and self._ending is None and ready is not None:
                self._refuse(token_id, ready)
                return False
        self._refused.clear()
        return True

    def forced_tokens(self) -> list[int]:
        """See `ConstraintState.forced_tokens`; all of the ending when there is room for no more."""
        if self._is_closing:
            return list(self._ending or ())
        return self._state.forced_tokens()

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        copy = type(self)(self._state.fork(), self._room)
        copy._ending, copy._next_search = self._ending, self._next_search
        copy._refused, copy._is_closing = list(self._refused), self._is_closing
        return copy

    def _look_for_ending(self, token_id: int | None = None) -> bool:
        """Know what is needed if the output has to stop here, if it is time to know it.

        token_id: the newest token. Returns whether a search was made.
        """
        room, ready = self._room, self._ending
        if ready and ready[0] == token_id:
            self._ending = ready[1:]
            return False
        self._ending = None
        if room is None or room > self._next_search:
            return False
        self._ending = self._state.closing(room)
        if self._ending is None:
            self._next_search = room // 2
            return True
        spare = room - len(self._ending)
        self._next_search = room - (1 if spare <= _MARGIN else min(_STRIDE, spare - _MARGIN))
        self._is_closing = spare <= 0
        return True

    def _refuse(self, token_id: int, ready: tuple[int, ...]) -> None:
        assert self._room is not None
        self._state.rollback(1)
        self._room += 1
        self._ending, self._next_search = ready, self._room
        self._refused.append(token_id)
        self._is_closing = len(self._refused) >= _MAX_REFUSALS
