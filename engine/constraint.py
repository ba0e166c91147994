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
        Every word is written. Does not change the state.
        """
        ...

    def advance(self, token_id: int) -> None:
        """Consume one token that the mask allowed; ValueError for one that it did not."""
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next whatever the model says; not consumed by this call."""
        ...

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        ...
