"""A compiled constraint, and the state of one output under it.

The masks come from llguidance (Microsoft, MIT): an Earley parser over a lexer of regex
derivatives, with a trie of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from flowforge.errors import InternalError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher

    from flowforge.grammars.vocabulary import Vocabulary


class ConstraintState:
    """How far one output has come. One owner, not thread-safe; fits `engine.constraint` by shape.

    A step costs microseconds; a copy 4 to 20 of them.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        """Take over `matcher`, which nobody else may use from here on."""
        self._matcher = matcher
        self._vocabulary = vocabulary

    def __repr__(self) -> str:
        return f"ConstraintState(accepting={self.is_accepting} complete={self.is_complete})"

    @property
    def is_complete(self) -> bool:
        """Whether the output is whole and nothing but an end token may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return bool(self._matcher.is_accepting())

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """Write the allowed tokens as bits, least significant first.

        out: uint32 [num_mask_words], contiguous; every word is written. A complete output allows
        the end tokens. Raises ValueError for another shape, InternalError IN411 when the grammar
        outgrew a limit.
        """
        num_words = self._vocabulary.num_mask_words
        if out.dtype != "uint32" or out.shape != (num_words,) or not out.flags.c_contiguous:
            raise ValueError(
                f"mask is {out.dtype}{list(out.shape)}, expected contiguous uint32[{num_words}]"
            )
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        self._raise_if_broken()

    def advance(self, token_id: int) -> None:
        """Consume one token that the mask allowed.

        Raises ValueError for one that it did not; the state is then as before.
        """
        # A matcher that was given a wrong token never works again, so wrong ones are kept from it.
        if not self._allows(token_id):
            raise ValueError(f"token {token_id} is not allowed here")
        self._matcher.consume_token(token_id)
        self._raise_if_broken()

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next whatever the model says; not consumed by this call.

        They are the tokens that the tokenizer itself would write; where the last of them could
        still grow into a longer one, it is left to the model.
        """
        if self.is_complete:
            return []
        return list(self._matcher.compute_ff_tokens())

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        return type(self)(self._matcher.deep_copy(), self._vocabulary)

    def _allows(self, token_id: int) -> bool:
        if token_id in self._vocabulary.eos_ids:
            return bool(self._matcher.is_accepting())
        if self.is_complete or not 0 <= token_id < self._vocabulary.vocab_size:
            return False
        return bool(self._matcher.validate_tokens([token_id]) == 1)

    def _raise_if_broken(self) -> None:
        if self._matcher.is_error():
            # The first line only: what follows is the parser's state, and with it the output.
            reason = self._matcher.get_error().splitlines()[0]
            raise InternalError(
                "IN411",
                f"the constraint's matcher failed: {reason}",
                help="make the JSON schema smaller, and report this",
            )


class CompiledConstraint:
    """What an output must be, compiled for one vocabulary. Immutable; starts any number of outputs.

    May be cached under (kind, source, vocabulary.fingerprint).
    """

    def __init__(self, prototype: LLMatcher, vocabulary: Vocabulary) -> None:
        """Take over `prototype`, a matcher at its start that has no error."""
        self._prototype = prototype
        self.vocabulary = vocabulary
        # Copies carry the lexer states that a first mask learns.
        prototype.compute_bitmask()

    def __repr__(self) -> str:
        return f"CompiledConstraint({self.vocabulary!r})"

    def start(self) -> ConstraintState:
        """Begin an output."""
        return ConstraintState(self._prototype.deep_copy(), self.vocabulary)
