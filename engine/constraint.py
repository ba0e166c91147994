"""What the engine asks of a token constraint; `flowforge.grammars` satisfies it by shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class TokenConstraint(Protocol):
    """The state of one constrained output: which tokens may come next.

    One owner, not thread-safe. The engine calls it from its own thread, in token order.
    """

    @property
    def is_complete(self) -> bool:
        """Whether the output is whole and nothing but an end-of-sequence token may follow."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here: an end-of-sequence token is among the allowed ones."""
        ...

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """Write the allowed tokens as bits.

        out: uint32 [ceil(vocab_size / 32)]; bit t % 32 of word t // 32 is token t, 1 = allowed.
        Every word is written. Does not change the state. The engine may call it from a thread of
        its own while the model computes; it then calls nothing else before the mask is there.
        """
        ...

    def limit_to(self, num_tokens: int) -> None:
        """Learn that the output will be cut after so many more tokens; called once, at its start.

        A constraint may use this to end the output in time.
        """
        ...

    def advance(self, token_id: int) -> bool:
        """Consume one token that the mask allowed; ValueError for one that it did not.

        False when the token cannot stand here after all, for a reason that no mask can say: the
        state is unchanged, and the next mask leaves the token out. Forced tokens always can.
        """
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next whatever the model says; not consumed by this call."""
        ...

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        ...
