"""Text that is read while it still comes: what is there, what may follow, and when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    Waiting = Generator[None]
    """Reads on each time there is more text, or none will come."""


class CutOff(Exception):
    """The text ended in the middle of what was read."""


class TextReader:
    """The text of one answer. Its coroutines yield where they need more of it."""

    def __init__(self) -> None:
        self.rest = ""
        self.is_over = False

    def take(self, num_chars: int) -> str:
        """The next characters, which are there."""
        taken, self.rest = self.rest[:num_chars], self.rest[num_chars:]
        return taken

    def more(self) -> Waiting:
        """Wait for more text. Raises CutOff when none comes."""
        if self.is_over:
            raise CutOff
        yield

    def begins_with(self, text: str) -> Generator[None, None, bool]:
        """Whether the rest begins with a text, known as soon as it differs."""
        while len(self.rest) < len(text) and text.startswith(self.rest) and not self.is_over:
            yield
        return self.rest.startswith(text)

    def goes_on_with(self, text: str) -> Generator[None, None, bool]:
        """As `begins_with`, where a part of the text at the end is no other text but that one cut.

        Raises CutOff.
        """
        found = yield from self.begins_with(text)
        if not found and self.rest and text.startswith(self.rest):
            raise CutOff
        return found

    def skip(self, text: str) -> Generator[None, None, bool]:
        """Pass over a text if it is there. Raises CutOff when it ends within it."""
        found = yield from self.goes_on_with(text)
        if found:
            self.take(len(text))
        return found

    def expect(self, text: str) -> Waiting:
        """Pass over a text that must be there. Raises CutOff, InternalError IN421."""
        yield from self.require(text)
        self.take(len(text))

    def require(self, text: str) -> Waiting:
        """Wait for a text that must be there. Raises CutOff, InternalError IN421."""
        if (yield from self.goes_on_with(text)):
            return
        if not self.rest:
            raise CutOff
        raise self.unreadable(repr(text))

    def until(self, ending: str, emit: Callable[[str], None]) -> Generator[None, None, bool]:
        """Emit text up to the first `ending`, which is taken in; all of it when there is none."""
        while True:
            place = self.rest.find(ending)
            if place >= 0:
                emit(self.take(place))
                self.take(len(ending))
                return True
            if self.is_over:
                emit(self.take(len(self.rest)))
                return False
            emit(self.take(len(self.rest) - _num_begun(self.rest, ending)))
            yield

    def one_of(self, texts: Iterable[str]) -> Generator[None, None, str]:
        """Pass over the longest of some texts that is there."""
        known = sorted(texts, key=len, reverse=True)
        while True:
            found = next((one for one in known if self.rest.startswith(one)), None)
            may_grow = any(len(one) > len(self.rest) and one.startswith(self.rest) for one in known)
            if not may_grow or self.is_over:
                break
            yield
        if found is None:
            if self.is_over and (not self.rest or any(one.startswith(self.rest) for one in known)):
                raise CutOff
            raise self.unreadable(" or ".join(map(repr, known)))
        return self.take(len(found))

    def unreadable(self, expected: str) -> InternalError:
        """The error for a text that its own grammar cannot have allowed."""
        return InternalError(
            "IN421",
            f"a tool call cannot be read: got {self.rest[:40]!r}, expected {expected}",
            help="this is a fault of the tool format: please report it",
        )


def _num_begun(text: str, ending: str) -> int:
    """Length of the longest end of `text` that begins `ending`."""
    sizes = range(min(len(text), len(ending) - 1), 0, -1)
    return next((size for size in sizes if ending.startswith(text[-size:])), 0)
