"""Token ids turned into text as they arrive, never half a character, never half a stop string."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.engine.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one output. The pieces joined are `tokenizer.decode` of all ids, up to a stop.

    A stop string is looked for in this output only, not in the prompt; the first to be completed
    ends the text, the longest if several end at one place, and is not part of the text. Where the
    ids are cut into pushes makes no difference. stop: strings, or one.
    shown_ids: control tokens that show in the text by their own; the others do not.
    num_tokens: ids consumed, up to and with the one that completed the stop string.
    Raises EngineError EN306 for an empty stop string. One owner, not thread-safe.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] | str = (),
        *,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        if isinstance(stop, str):
            stop = (stop,)  # a text is a sequence as well, of its characters, which nobody means
        if "" in stop:
            raise EngineError(
                "EN306",
                "stop string is empty, expected at least one character",
                help="remove the empty stop string",
            )
        self._tokenizer = tokenizer
        self._stop: tuple[str, ...] = tuple(stop)
        self._shown_ids = shown_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_first = tokenizer.strips_leading_space
        self._stopped_by: str | None = None
        self.num_tokens = 0

    def __repr__(self) -> str:
        return f"IncrementalDetokenizer(tokens={self.num_tokens} held={len(self._held)})"

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text; later ids are ignored."""
        return self._stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text."""
        return self._stopped_by

    def push(self, token_ids: Iterable[int]) -> str:
        """Consume ids and return the text that became certain."""
        certain: list[str] = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            is_hidden = token_id not in self._shown_ids
            piece = self._tokenizer.token_bytes(token_id, skip_special=is_hidden)
            certain.append(self._admit(self._decoder.decode(piece)))
        return "".join(certain)

    def finish(self) -> str:
        """Return what was held back: a possible stop's start, U+FFFD for half a character."""
        if self.stopped:
            return ""
        certain = self._admit(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""  # empty if that very text completed a stop string
        return certain + held

    def fork(self) -> IncrementalDetokenizer:
        """Copy the state: the copy and the original go on independently."""
        copy = IncrementalDetokenizer(self._tokenizer, self._stop, shown_ids=self._shown_ids)
        copy._decoder.setstate(self._decoder.getstate())
        copy._held = self._held
        copy._is_first = self._is_first
        copy._stopped_by = self._stopped_by
        copy.num_tokens = self.num_tokens
        return copy

    def _admit(self, text: str) -> str:
        """Take decoded text in; return the part that no stop string can claim any more."""
        if self._is_first and text:
            text, self._is_first = text.removeprefix(" "), False
        if not self._stop:
            return text
        pending = self._held + text
        hit = self._find_stop(pending)
        if hit is not None:
            start, self._stopped_by = hit
            self._held = ""
            return pending[:start]
        keep = self._num_possible(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def _find_stop(self, text: str) -> tuple[int, str] | None:
        """Find the stop string that is complete first; the longest of those ending together."""
        hits = [(start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        return min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]), default=None)

    def _num_possible(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0
