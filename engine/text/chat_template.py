"""Messages turned into the exact ids of a prompt by the model's own chat template.

A prompt is scaffolding and contents. The template is rendered once with a placeholder for each
content and split there; scaffolding is encoded with control tokens, each content by itself and
without. So the ids are a pure function of the messages, content never controls, and the ids of a
longer conversation are those of its prefix, the generated ids, and the ids of the rest.

Where scaffolding and content meet without a control token between them (the role before a text),
they are tokenised apart, also where one token could span both: a boundary that moved with the text
would make a prefix's ids depend on what follows it.

A template that changes contents cannot be split this way. Contents that it merely strips are
stripped first; the rest is rendered whole, with the first character of every control text in the
contents replaced by a stand-in until the control tokens of the scaffolding have been found.
"""

from __future__ import annotations

import itertools
import logging
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from flowforge.engine.text.template_source import compile_template, read_template_source
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from flowforge.engine.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `content` is text: it never becomes a control token."""

    role: Role
    content: str

    @classmethod
    def from_openai(cls, message: Mapping[str, object]) -> Message:
        """Read a message of the chat completions API; text parts are joined, null is "".

        Raises EngineError EN307 for another role or a content that is not text.
        """
        spoken = message.get("role")
        role = _ROLES.get(spoken) if isinstance(spoken, str) else None
        if role is None:
            raise _bad_message(f"role {spoken!r}, expected one of {list(_ROLES)}")
        return cls(role, _text_of(message.get("content")))


class ChatTemplate:
    """The chat template of one model. Immutable; usable from several threads.

    splits: whether contents pass through the template unchanged, found by probing at load. When
    False a warning was logged, and prompts whose contents the template changes are rendered whole.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, today: date | None = None) -> None:
        """Compile a template.

        today: what templates that print a date see; without it they use their own default, or
        fail if they have none. Raises EngineError EN303 when the source is no template.
        """
        self._source = source
        self._tokenizer = tokenizer
        self._render_text = compile_template(source, tokenizer, today=today)
        self._control = _alternation(tokenizer.special_tokens)
        self.splits = self._probe()

    def __repr__(self) -> str:
        return f"ChatTemplate(chars={len(self._source)} splits={self.splits})"

    @classmethod
    def from_directory(
        cls, directory: Path | str, tokenizer: Tokenizer, *, today: date | None = None
    ) -> ChatTemplate:
        """Load a model directory's template: chat_template.jinja, or from tokenizer_config.json.

        Raises EngineError EN302 when there is none, EN303 when it is no template.
        """
        return cls(read_template_source(directory), tokenizer, today=today)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> list[int]:
        """Return the ids of a prompt.

        continue_final: end right after the last message's content, white space and all, instead
        of closing its turn and opening the next.
        Raises EngineError EN303 (template broken), EN304 (template refuses these messages),
        EN305 (template is not safe), EN307 (no message to continue).
        """
        if not continue_final:
            return self._with_bos(self._encode(messages, add_generation_prompt))
        if not messages:
            raise _bad_message("no message to continue, expected at least one")
        head, _ = self._cut(messages, len(messages) - 1, add_generation_prompt=False)
        return self._with_bos(head + self._tokenizer.encode(messages[-1].content))

    def continuation(
        self,
        history: Sequence[Message],
        appended: Sequence[Message] = (),
        *,
        last_token: int | None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Return the ids that follow a generated turn when a conversation goes on.

        history: the messages so far; the last is the assistant's, and its content is not looked
        at, since its generated ids stand as they are. appended: the messages after it.
        last_token: the last id that is in the sequence, None if nothing was generated. Where it
        is the id that closes the turn already, closing is not repeated.
        So with `prompt = render(history[:-1])`, the whole is exactly
        `prompt + generated + continuation(history, appended, last_token=generated[-1])`.
        Raises as `render` does; EN307 when history does not end with the assistant.
        """
        if not history or history[-1].role != "assistant":
            found = history[-1].role if history else "nothing"
            raise _bad_message(f"the conversation ends with {found!r}, expected 'assistant'")
        messages = [*history, *appended]
        _, tail = self._cut(messages, len(history) - 1, add_generation_prompt=add_generation_prompt)
        return self._without_closing(tail, last_token)

    def _without_closing(self, tail: list[int], last_token: int | None) -> list[int]:
        """Drop the end of the turn where it is there already; white space before it is dropped."""
        if last_token is None or last_token not in self._tokenizer.eos_ids:
            return tail
        if last_token not in tail:
            return tail
        place = tail.index(last_token)
        before = self._tokenizer.decode(tail[:place], skip_special=False)
        return tail if before.strip() else tail[place + 1 :]

    def _encode(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
        layout = self._lay_out(messages, add_generation_prompt)
        if layout is not None:
            return self._encode_pieces(*layout)
        guarded, stand_ins = self._guard(messages)
        text = self._render_text(guarded, add_generation_prompt)
        self._require_all_printed(guarded, text, add_generation_prompt)
        return self._encode_whole(text, stand_ins)

    def _require_all_printed(
        self, messages: Sequence[Message], text: str, add_generation_prompt: bool
    ) -> None:
        """Some templates pass over roles that they do not know, and the model never sees the text.

        Raises EngineError EN304 for a message that is neither in `text` nor printed in any form.
        """
        printed = (self._render_marked(messages, add_generation_prompt) or [])[1::2]
        for idx, message in enumerate(messages):
            if str(idx) not in printed and message.content.strip() not in text:
                raise EngineError(
                    "EN304",
                    f"chat template leaves out the {message.role!r} message at place {idx}",
                    help="the model knows no such message there: say it in a user message",
                )

    def _cut(
        self, messages: Sequence[Message], hole_idx: int, *, add_generation_prompt: bool
    ) -> tuple[list[int], list[int]]:
        """Return the ids before and after one message's content."""
        layout = self._lay_out(messages, add_generation_prompt)
        if layout is None:
            return self._cut_whole(messages, hole_idx, add_generation_prompt)
        pieces, contents = layout
        after = hole_idx + 1
        head = self._encode_pieces(pieces[:after], contents[:hole_idx])
        return head, self._encode_pieces(pieces[after:], contents[after:])

    def _lay_out(
        self, messages: Sequence[Message], add_generation_prompt: bool
    ) -> tuple[list[str], list[str]] | None:
        """Split a prompt's text into scaffolding (one piece more) and contents.

        None where that does not give exactly the text that the template makes of the contents.
        """
        text = self._render_text(messages, add_generation_prompt)
        pieces = self._split(messages, add_generation_prompt)
        if pieces is None:
            return None
        for alter in (_keep, str.strip):
            contents = [alter(message.content) for message in messages]
            if _interleave(pieces, contents) == text:
                return pieces, contents
        return None

    def _cut_whole(
        self, messages: Sequence[Message], hole_idx: int, add_generation_prompt: bool
    ) -> tuple[list[int], list[int]]:
        guarded, stand_ins = self._guard(messages)
        hole = _unused_marker(self._source, [message.content for message in guarded])
        guarded[hole_idx] = replace(guarded[hole_idx], content=hole)
        head, found, tail = self._render_text(guarded, add_generation_prompt).partition(hole)
        if not found or hole in tail:
            raise EngineError(
                "EN303",
                f"chat template prints the {guarded[hole_idx].role!r} message's content "
                f"{'more than once' if found else 'not at all'}, expected once",
                help="this template cannot be continued: give the whole conversation instead",
            )
        return self._encode_whole(head, stand_ins), self._encode_whole(tail, stand_ins)

    def _split(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[str] | None:
        """Cut at the contents; None where they do not come out once each and in order."""
        parts = self._render_marked(messages, add_generation_prompt)
        if parts is None:
            return None
        in_order = parts[1::2] == [str(idx) for idx in range(len(messages))]
        return parts[::2] if in_order else None

    def _render_marked(
        self, messages: Sequence[Message], add_generation_prompt: bool
    ) -> list[str] | None:
        """Render with a placeholder for each content: scaffolding and indices of messages in turn.

        None where the template does not take placeholders: it wants contents of some form.
        """
        if not messages:
            return [self._render_text(messages, add_generation_prompt)]
        marker = _unused_marker(self._source, [f"{m.role}{m.content}" for m in messages])
        marked = [
            replace(message, content=f"{marker}{idx}{marker}")
            for idx, message in enumerate(messages)
        ]
        try:
            text = self._render_text(marked, add_generation_prompt)
        except EngineError as error:
            if error.code == "EN305":
                raise
            return None
        return re.split(f"{marker}([0-9]+){marker}", text)

    def _encode_pieces(self, pieces: Sequence[str], contents: Sequence[str]) -> list[int]:
        """Encode scaffolding and contents in turn; `pieces` may be one longer than `contents`."""
        token_ids: list[int] = []
        for piece, content in itertools.zip_longest(pieces, contents):
            token_ids += self._tokenizer.encode_scaffolding(piece)
            token_ids += self._tokenizer.encode(content or "")
        return token_ids

    def _guard(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """Put stand-ins into contents wherever they spell a control token.

        Returns the messages and the map from stand-in to the character it stands for.
        """
        texts = [self._source, *(message.content for message in messages)]
        unused = _unused_characters(texts)
        first_chars = sorted({text[0] for text in self._tokenizer.special_tokens})
        stand_in_of = dict(zip(first_chars, unused, strict=False))
        if len(stand_in_of) < len(first_chars):
            raise _bad_message(
                "the messages hold every private-use character, expected some unused"
            )
        guarded = [
            replace(message, content=self._guard_text(message.content, stand_in_of))
            for message in messages
        ]
        return guarded, {stand_in: char for char, stand_in in stand_in_of.items()}

    def _guard_text(self, text: str, stand_in_of: Mapping[str, str]) -> str:
        # Again until nothing is left: replacing one can uncover another that overlapped it.
        while self._control.search(text):
            text = self._control.sub(lambda hit: stand_in_of[hit[0][0]] + hit[0][1:], text)
        return text

    def _encode_whole(self, text: str, stand_ins: Mapping[str, str]) -> list[int]:
        token_ids: list[int] = []
        restore = str.maketrans(dict(stand_ins))
        end = 0
        for hit in self._control.finditer(text):
            token_ids += self._tokenizer.encode(text[end : hit.start()].translate(restore))
            token_ids.append(self._tokenizer.special_tokens[hit[0]])
            end = hit.end()
        return token_ids + self._tokenizer.encode(text[end:].translate(restore))

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        """Start with BOS exactly once, if the model wants one."""
        bos_id = self._tokenizer.bos_id
        if bos_id is None or not self._tokenizer.adds_bos or token_ids[:1] == [bos_id]:
            return token_ids
        return [bos_id, *token_ids]

    def _probe(self) -> bool:
        """Whether a conversation with odd white space comes out of the template unchanged."""
        messages = [Message("user", " a\n"), Message("assistant", "\n b "), Message("user", "c ")]
        try:
            text = self._render_text(messages, True)
            pieces = self._split(messages, True)
        except EngineError as error:
            if error.code == "EN305":
                return False  # rendering says so to whoever asks for a prompt
            _logger.warning("chat template fails on a plain conversation: %s", error.message)
            return False
        contents = [message.content for message in messages]
        if pieces is not None and _interleave(pieces, contents) == text:
            return True
        _logger.warning(
            "chat template changes message contents: prompts are split at stripped contents or "
            "rendered whole, and a long conversation's prefix may be computed again"
        )
        return False


def _keep(text: str) -> str:
    return text


def _interleave(pieces: Sequence[str], contents: Sequence[str]) -> str:
    pairs = itertools.zip_longest(pieces, contents, fillvalue="")
    return "".join(itertools.chain.from_iterable(pairs))


def _alternation(control_tokens: Mapping[str, int]) -> re.Pattern[str]:
    longest_first = sorted(control_tokens, key=len, reverse=True)
    # The empty look-ahead never matches: a vocabulary without control tokens has none to find.
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _unused_characters(texts: Sequence[str]) -> Iterator[str]:
    """Private-use characters that occur in none of the texts, in order: no chance is involved."""
    used = set[str]().union(*texts)
    return (char for char in map(chr, _PRIVATE_USE) if char not in used)


def _unused_marker(source: str, contents: Sequence[str]) -> str:
    """Find a character that occurs neither in the template nor in a content."""
    char = next(_unused_characters([source, *contents]), None)
    if char is None:
        raise _bad_message("the messages hold every private-use character, expected one unused")
    return char


def _text_of(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in cast("list[object]", content))
    raise _bad_message(f"content is a {type(content).__name__}, expected text or text parts")


def _part_text(part: object) -> str:
    fields = cast("dict[str, object]", part) if isinstance(part, dict) else {}
    text = fields.get("text")
    if fields.get("type") == "text" and isinstance(text, str):
        return text
    kind = fields.get("type", type(part).__name__)
    raise _bad_message(f"content part of type {kind!r}, expected 'text'")


def _bad_message(reason: str) -> EngineError:
    return EngineError("EN307", reason, help="a message is a role and a text")
