"""What a model thinks before it answers, told apart from the answer by its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.engine.text.tokenizer import Tokenizer
    from flowforge.grammars.thinking import ThinkingMarks


class ThoughtReader:
    """Reads the thoughts of one output, which is under a `ThinkingState` with the same marks.

    num_tokens: of the output, those that are before its answer, as far as they were read.
    """

    def __init__(self, tokenizer: Tokenizer, marks: ThinkingMarks) -> None:
        closing = frozenset(marks.closing_ids)
        self._thoughts = IncrementalDetokenizer(tokenizer, (marks.closing,), shown_ids=closing)
        self._num_opening = len(marks.opening_ids)
        self._num_bridge = len(marks.bridge_ids)
        self.num_tokens = 0

    def push(self, token_ids: Iterable[int]) -> tuple[str, tuple[int, ...]]:
        """Take tokens in; the thoughts that became certain, and which tokens are the answer's."""
        pieces: list[str] = []
        answer: list[int] = []
        for token_id in token_ids:
            if self._num_opening:
                self._num_opening -= 1
            elif not self._thoughts.stopped:
                pieces.append(self._thoughts.push([token_id]))
            elif self._num_bridge:
                self._num_bridge -= 1
            else:
                answer.append(token_id)
                continue
            self.num_tokens += 1
        return "".join(pieces), tuple(answer)
