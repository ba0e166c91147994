"""The text that one step has written so far, as much of its end as is kept."""

from __future__ import annotations

from collections import deque

MAX_KEPT_CHARS = 400_000
"""Characters kept of one text while it is written; its step's value has all of it at the end."""


class StreamText:
    """Pieces in order. Positions count characters from the beginning of all that was written."""

    def __init__(self, max_kept: int = MAX_KEPT_CHARS) -> None:
        self.num_tokens: int = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._max_kept = max_kept
        self._pieces: deque[str] = deque()
        self._num_kept = 0
        self._num_dropped = 0

    @property
    def end(self) -> int:
        """The position behind the last character."""
        return self._num_dropped + self._num_kept

    @property
    def start(self) -> int:
        """The position of the first character that is kept."""
        return self._num_dropped

    @property
    def rate(self) -> float | None:
        """Tokens a second since the first text; None before there is a second one."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return max(0, self.num_tokens - 1) / (self.last_s - self.first_s)

    def append(self, text: str, num_tokens: int, time_s: float) -> None:
        """One more piece. Whole pieces of the beginning go when there are too many characters."""
        self.num_tokens += num_tokens
        self.first_s = time_s if self.first_s is None else self.first_s
        self.last_s = time_s
        if not text:
            return
        self._pieces.append(text)
        self._num_kept += len(text)
        while self._num_kept > self._max_kept:
            excess = self._num_kept - self._max_kept
            oldest = self._pieces.popleft()
            if len(oldest) > excess:
                self._pieces.appendleft(oldest[excess:])
            gone = min(len(oldest), excess)
            self._num_kept -= gone
            self._num_dropped += gone

    def since(self, position: int) -> str:
        """What was written from a position on, or what is kept of it."""
        num_wanted = self.end - position
        if num_wanted <= 0:
            return ""
        found: list[str] = []
        for piece in reversed(self._pieces):
            if num_wanted <= 0:
                break
            found.append(piece[-num_wanted:])
            num_wanted -= len(piece)
        return "".join(reversed(found))

    @property
    def kept(self) -> str:
        """All that is kept."""
        if len(self._pieces) > 1:
            whole = "".join(self._pieces)
            self._pieces = deque([whole])
        return self._pieces[0] if self._pieces else ""
