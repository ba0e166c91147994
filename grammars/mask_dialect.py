"""Grammars written in the mask's own dialect, which its users know: no lark is involved.

The dialect is llguidance's variant of Lark: `%json`, special tokens, lazy and parametric rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import Location, WorkflowError
from flowforge.grammars.compilation import (
    GrammarRefused,
    build_matcher,
    byte_tokenizer,
    compile_mask_grammar,
    matcher_grammar,
    matches,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from flowforge.grammars.constraint import CompiledConstraint
    from flowforge.grammars.vocabulary import Vocabulary

_SHOWN_CHARS = 40
_NEEDS_A_MODEL = "unknown special token"


class MaskGrammar:
    """A grammar in the mask's dialect. Immutable. file: how messages call it."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def compile(self, vocabulary: Vocabulary) -> CompiledConstraint:
        """Compile the mask. Raises WorkflowError WF431, with the place in the grammar."""
        try:
            return compile_mask_grammar(self.text, vocabulary)
        except GrammarRefused as error:
            raise self._refused(error) from error

    def check(self) -> None:
        """Compile without any model. Raises WorkflowError WF431.

        Whether a model has the special tokens that the grammar names is for `compile` to find.
        """
        self._byte_matcher()

    def judge(self, text: str) -> None:
        """Raise WorkflowError WF433 when a text is not in the grammar.

        With special tokens, which have no text, nothing can be said: the mask alone has judged.
        """
        matcher = self._byte_matcher()
        if matcher is not None and not matches(matcher, text):
            shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
            raise WorkflowError("WF433", f"the text {shown!r} is not in the grammar")

    def _byte_matcher(self) -> LLMatcher | None:
        try:
            return build_matcher(byte_tokenizer(), matcher_grammar(self.text))
        except GrammarRefused as error:
            if error.reason.startswith(_NEEDS_A_MODEL):
                return None
            raise self._refused(error) from error

    def _refused(self, error: GrammarRefused) -> WorkflowError:
        return WorkflowError(
            "WF431",
            f"the grammar cannot be masked: {error.reason}",
            location=Location(self.file, error.line or 1, error.column or 1),
            help="this is llguidance's dialect of Lark; leave 'dialect' out for ordinary Lark",
        )
