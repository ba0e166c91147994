"""The text of one answer, and the calls in it, read from its tokens as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.protocol import TextDelta
from flowforge.engine.text.detokenizer import IncrementalDetokenizer
from flowforge.grammars.tool_formats import ContentText

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flowforge.backends.thoughts import ThoughtReader
    from flowforge.engine.text.tokenizer import Tokenizer
    from flowforge.grammars.constraint import ConstraintState
    from flowforge.grammars.tool_formats import CompiledTools, Piece, ToolCall


class AnswerReader:
    """Reads one answer. text: what is certain of it so far; of an answer with tools, its free text.

    prefill: how the text begins, which no token says. tools: what the answer may call. may_be_text:
    whether it is a text of a form if it is no call, so that nothing is certain while it may be
    either. thoughts: reads what comes before it, if anything does; owned from here on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prefill: str = "",
        stop: tuple[str, ...] = (),
        tools: CompiledTools | None = None,
        may_be_text: bool = False,
        thoughts: ThoughtReader | None = None,
    ) -> None:
        self.text = prefill
        # While an answer that may be text has said nothing but what begins a call: how far it came.
        self._calls: ConstraintState | None = None
        self._held = ""
        if tools is not None and may_be_text:
            self._calls = tools.constraint.start()
        self._thoughts = thoughts
        self._parser = None if tools is None else tools.parser()
        shown: frozenset[int] = frozenset()
        if tools is not None:
            # A format's marks may be control tokens, and it is read by its marks.
            vocabulary = tools.constraint.vocabulary
            shown = frozenset(vocabulary.control_ids.values()) - vocabulary.eos_ids
        self._detokenizer = IncrementalDetokenizer(tokenizer, stop, shown_ids=shown)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._detokenizer.stopped

    @property
    def num_tokens(self) -> int:
        """Tokens read, up to and with the one that completed a stop string."""
        return self.num_before + self._detokenizer.num_tokens

    @property
    def num_before(self) -> int:
        """Those of them that came before the answer."""
        return 0 if self._thoughts is None else self._thoughts.num_tokens

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that are whole."""
        return () if self._parser is None else self._parser.answer.calls

    @property
    def cuts_call(self) -> bool:
        """Whether the answer, which has ended, ended within a call or before one that it owes."""
        return self._parser is not None and not self._parser.answer.is_whole

    def deltas(self, token_ids: Sequence[int]) -> Iterator[TextDelta]:
        """Take tokens in; what they say, thoughts before the answer."""
        answer = tuple(token_ids)
        if self._thoughts is not None:
            piece, answer = self._thoughts.push(token_ids)
            before = tuple(token_ids[: len(token_ids) - len(answer)])
            if before:
                yield TextDelta(piece, len(before), before, is_thought=True)
        if answer or self._thoughts is None:
            yield TextDelta(self.push(answer), len(answer), answer)

    def push(self, token_ids: Iterable[int]) -> str:
        """Take tokens of the answer in; the text that became certain by them."""
        token_ids = tuple(token_ids)
        if self._calls is not None and not all(map(self._calls_go_on, token_ids)):
            self._calls = self._parser = None
        return self._take(self._detokenizer.push(token_ids))

    def finish(self) -> str:
        """No more tokens come; what was held back of the text."""
        rest = self._detokenizer.finish()
        if self._parser is None:
            return self._keep(rest)
        # Half a character, where the answer was cut in its middle, is no mark and no text.
        whole = self._take(rest.removesuffix("\ufffd"))
        last = self._parser.finish()
        if self._calls is not None and not self._parser.answer.is_whole:
            # It begins like a call and is none, or was cut before it could be told.
            self._calls = self._parser = None
            return self._take("")
        return whole + self._keep(_content_of(last))

    def _calls_go_on(self, token_id: int) -> bool:
        assert self._calls is not None
        is_allowed = self._calls.allows(token_id)
        return is_allowed and self._calls.advance(token_id)

    def _take(self, text: str) -> str:
        if self._calls is not None:
            self._held += text
        if self._parser is None:
            text, self._held = self._held + text, ""
            return self._keep(text)
        return self._keep(_content_of(self._parser.push(text)))

    def _keep(self, text: str) -> str:
        self.text += text
        return text


def _content_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, ContentText))


class AnswerEnd:
    """A stop condition of the engine: an answer holds one of these strings, or so many tokens.

    thoughts: reads what comes before the answer, if anything does; owned from here on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        thoughts: ThoughtReader | None,
        max_tokens: int | None,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, stop)
        self._thoughts = thoughts
        self._max_tokens = max_tokens

    def is_met_by(self, token_ids: list[int]) -> bool:
        """See `StopCondition.is_met_by`."""
        answer = token_ids if self._thoughts is None else self._thoughts.push(token_ids)[1]
        self._detokenizer.push(answer)
        most = self._max_tokens
        return self._detokenizer.stopped or (
            most is not None and self._detokenizer.num_tokens >= most
        )
