"""A turn while it is written: text in pieces, or a value as its fields close."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from pydantic_core import from_json

from flowforge.errors import WorkflowError
from flowforge.grammars.json_parts import JsonPart, JsonParts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from flowforge.flows.answers import AnswerType
    from flowforge.flows.cursor import Turn
    from flowforge.language.program import JsonValue

T = TypeVar("T")
E = TypeVar("E")
ItemT = TypeVar("ItemT")

_CLOSERS = frozenset(",]}")


class TextStream:
    """Pieces of text as the model writes them, for `async for`; together they are the result.

    Made by `Chat.stream`, good until the end of its block, gone through once. Raises as `Chat.gen`
    while it is gone through.
    """

    def __init__(self, turn: Turn, texts: AsyncGenerator[str]) -> None:
        self._turn = turn
        self._texts = texts

    def __aiter__(self) -> AsyncIterator[str]:
        """Itself: a turn is gone through once."""
        return self

    async def __anext__(self) -> str:
        """The next piece."""
        async for text in self._texts:
            if text:
                return text
        self._turn.value = self._turn.done.text
        raise StopAsyncIteration

    @property
    def result(self) -> str:
        """The whole text. Raises WorkflowError WF611 before the end."""
        if not self._turn.is_whole:
            raise _not_whole(self._turn)
        return self._turn.done.text


class ValueStream(Generic[T]):
    """The JSON value as far as it is closed, each time that more of it has; then the result.

    Made by `Chat.stream`, good until the end of its block, gone through once, in one of three ways:
    itself, `parts` or `elements`. Raises as `Chat.gen` while it is gone through.
    """

    def __init__(self, turn: Turn, texts: AsyncGenerator[str], answer: AnswerType[T]) -> None:
        self._turn = turn
        self._texts = texts
        self._answer = answer
        self._results: list[T] = []
        self._text = ""
        self._last: JsonValue = None

    def __aiter__(self) -> AsyncIterator[JsonValue]:
        """Itself: a turn is gone through once."""
        return self

    async def __anext__(self) -> JsonValue:
        """The value so far: fields and items that have closed, the whole value last."""
        async for piece in self._texts:
            self._text += piece
            if not _CLOSERS.isdisjoint(piece) and self._is_news(closed_part(self._text)):
                return self._last
        if not self._results:
            self._take_result()
            if self._is_news(cast("JsonValue", from_json(self._turn.done.text))):
                return self._last
        raise StopAsyncIteration

    def parts(self) -> PartStream[JsonPart]:
        """Each field of an object, or item of a list, as it closes, in place of the value so far.

        Together they are the value: what comes later belongs to other keys.
        """
        return PartStream(self._texts, self._take_result, lambda part: part)

    def elements(self: ValueStream[list[ItemT]]) -> PartStream[ItemT]:
        """Each item of a `list[…]` as it closes, of its type.

        Raises WorkflowError WF603 for one that the type's own validators refuse, WF608 for a value
        that is no `list[…]`.
        """
        path, answer = self._turn.path, self._answer
        return PartStream(self._texts, self._take_result, answer.item_reader(path))

    def _take_result(self) -> None:
        if not self._results:
            result = self._answer.value_of(self._turn.path, self._turn.done)
            self._turn.value = result
            self._results.append(result)

    def _is_news(self, value: JsonValue) -> bool:
        is_news = value is not None and value != self._last
        if is_news:
            self._last = value
        return is_news

    @property
    def result(self) -> T:
        """The typed value. Raises WorkflowError WF611 before the end."""
        if not self._results:
            raise _not_whole(self._turn)
        return self._results[0]


class PartStream(Generic[E]):
    """The parts of a value while it is written; behind the last of them the value is whole."""

    def __init__(
        self,
        texts: AsyncGenerator[str],
        finish: Callable[[], None],
        read: Callable[[JsonPart], E],
    ) -> None:
        self._texts = texts
        self._finish = finish
        self._read = read
        self._parts = JsonParts()
        self._waiting: deque[JsonPart] = deque()

    def __aiter__(self) -> AsyncIterator[E]:
        """Itself: a turn is gone through once."""
        return self

    async def __anext__(self) -> E:
        """The next part."""
        while not self._waiting:
            text = await anext(self._texts, None)
            if text is None:
                self._finish()
                raise StopAsyncIteration
            self._waiting += self._parts.push(text)
        return self._read(self._waiting.popleft())


def closed_part(text: str) -> JsonValue:
    """What of a JSON text that is still being written is final; None before anything is.

    An open text and a number that may go on are left out; what holds them is there.
    """
    end = max(text.rfind(closer) for closer in _CLOSERS)
    if end < 0 or not text.lstrip().startswith(("[", "{")):
        return None
    return cast("JsonValue", from_json(text[: end + 1], allow_partial=True))


def _not_whole(turn: Turn) -> WorkflowError:
    """WF611: there is no result yet."""
    return WorkflowError(
        "WF611",
        f"step {turn.path!r} has no result: it is still written, or was left early",
        help="go through the stream to its end first",
    )
