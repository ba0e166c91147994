"""Ending a generation at a text that it says, wherever the text's tokens begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.text.tokenizer import Tokenizer


class StopStrings:
    """A `StopCondition` for `GenerationRequest`: the output holds one of these strings.

    The last token may say more than the string: an `IncrementalDetokenizer` with the same strings
    gives the text before it. Raises EngineError EN306 for an empty string. One owner.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str] | str) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, strings)

    def is_met_by(self, token_ids: list[int]) -> bool:
        """See `StopCondition.is_met_by`."""
        self._detokenizer.push(token_ids)
        return self._detokenizer.stopped
