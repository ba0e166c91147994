"""A compiled constraint, and the state of one output under it.

The masks come from llguidance (Microsoft, MIT): an Earley parser over a lexer of regex
derivatives, with a trie of the vocabulary.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Self

from flowforge.errors import InternalError, WorkflowError
from flowforge.grammars.closing import find_closing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher

    from flowforge.grammars.vocabulary import Vocabulary

_MAX_WARMING_TOKENS = 64
_MAX_WARMING_MASK_S = 0.02
# How llguidance words that a step went past what it may cost.
_LIMIT = re.compile(r"limit|too many|too complex|fuel|items; max is", re.IGNORECASE)


class ConstraintState:
    """How far one output has come. One owner, not thread-safe; fits `engine.constraint` by shape.

    A step costs microseconds; a copy 4 to 20 of them.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, num_tokens: int = 0) -> None:
        """Take over `matcher`, which nobody else may use from here on.

        num_tokens: how many it has consumed.
        """
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._num_tokens = num_tokens

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

    @property
    def eos_ids(self) -> frozenset[int]:
        """The end tokens."""
        return self._vocabulary.eos_ids

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """Write the allowed tokens as bits, least significant first.

        out: uint32 [num_mask_words], contiguous; every word is written. A complete output allows
        the end tokens. Drops the GIL. Raises ValueError for another shape, WorkflowError WF418 when
        the constraint outgrew a limit.
        """
        num_words = self._vocabulary.num_mask_words
        if out.dtype != "uint32" or out.shape != (num_words,) or not out.flags.c_contiguous:
            raise ValueError(
                f"mask is {out.dtype}{list(out.shape)}, expected contiguous uint32[{num_words}]"
            )
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        self._raise_if_broken()

    def limit_to(self, num_tokens: int) -> None:
        """See `engine.constraint`: of no matter here; an output that is cut is cut."""

    def advance(self, token_id: int) -> bool:
        """Consume one token that the mask allowed; always True.

        Raises ValueError for one that it did not; the state is then as before.
        """
        # A matcher that was given a wrong token never works again, so wrong ones are kept from it.
        if not self.allows(token_id):
            raise ValueError(f"token {token_id} is not allowed here")
        self._matcher.consume_token(token_id)
        self._raise_if_broken()
        self._num_tokens += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back, also over an end token. ValueError for more than there are."""
        if not 0 <= num_tokens <= self._num_tokens:
            raise ValueError(f"cannot take back {num_tokens} of {self._num_tokens} tokens")
        self._matcher.rollback(num_tokens)
        self._num_tokens -= num_tokens

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next whatever the model says; not consumed by this call.

        They are the tokens that the tokenizer itself would write; where the last of them could
        still grow into a longer one, it is left to the model.
        """
        if self.is_complete:
            return []
        return list(self._matcher.compute_ff_tokens())

    def closing(self, max_tokens: int) -> tuple[int, ...] | None:
        """A short ending of at most `max_tokens` tokens after which the output is accepting.

        Empty where it is already; None where none was found, which does not mean that there is
        none. Does not change the state.
        """
        return find_closing(self._matcher, self._vocabulary, max_tokens)

    def fork(self) -> Self:
        """Copy the state: the copy and the original go on independently."""
        return type(self)(self._matcher.deep_copy(), self._vocabulary, self._num_tokens)

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next; an end token only where the output may end."""
        if token_id in self._vocabulary.eos_ids:
            return bool(self._matcher.is_accepting())
        if self.is_complete or not 0 <= token_id < self._vocabulary.vocab_size:
            return False
        return bool(self._matcher.validate_tokens([token_id]) == 1)

    def _raise_if_broken(self) -> None:
        if not self._matcher.is_error():
            return
        # The first line only: what follows is the parser's state, and with it the output.
        reason = self._matcher.get_error().splitlines()[0]
        if _LIMIT.search(reason) is not None:
            raise WorkflowError(
                "WF418",
                f"the constraint outgrew its limits after {self._num_tokens} tokens",
                help="make the schema, grammar or regex simpler: fewer nested repetitions, less "
                "that can be read in two ways",
            )
        raise InternalError(
            "IN411", f"the constraint's matcher failed: {reason}", help="please report this"
        )


class CompiledConstraint:
    """What an output must be, compiled for one vocabulary. Immutable; starts any number of outputs.

    May be cached under (kind, source, vocabulary.fingerprint).
    """

    def __init__(self, prototype: LLMatcher, vocabulary: Vocabulary) -> None:
        """Take over `prototype`, a matcher at its start that has no error."""
        self._prototype = prototype
        self.vocabulary = vocabulary
        _warm(prototype, vocabulary)

    def __repr__(self) -> str:
        return f"CompiledConstraint({self.vocabulary!r})"

    def start(self, after: Sequence[int] = ()) -> ConstraintState:
        """Begin an output, or go on with one of which there are tokens, as a fork of it does.

        Raises ValueError when it cannot begin with those tokens.
        """
        state = ConstraintState(self._prototype.deep_copy(), self.vocabulary)
        for token_id in after:
            state.advance(token_id)
        return state


def _warm(prototype: LLMatcher, vocabulary: Vocabulary) -> None:
    """Go along one short output: copies carry the lexer states that its masks have learned."""
    started_at = time.perf_counter()
    prototype.compute_bitmask()
    if time.perf_counter() - started_at > _MAX_WARMING_MASK_S:
        return
    for token_id in find_closing(prototype, vocabulary, _MAX_WARMING_TOKENS) or ():
        prototype.consume_token(token_id)
        prototype.compute_bitmask()
    prototype.reset()
