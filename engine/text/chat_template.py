"""Messages turned into the exact ids of a prompt by the model's own chat template.

A prompt is scaffolding and contents. The template is rendered once with a placeholder for each
content and split there; scaffolding is encoded with control tokens, each content by itself and
without. So the ids are a pure function of the messages, content never controls, and the ids of a
longer conversation are those of its prefix, the generated ids, and the ids of the rest.

Where scaffolding and content meet without a control token between them (the role before a text),
they are tokenised apart, also where one token could span both: a boundary that moved with the text
would make a prefix's ids depend on what follows it.

Tools and tool calls are printed by the template, as JSON or in its own way. Their texts stay part
of the scaffolding, tokenised as models were trained on it, but for the control texts in them: those
are taken out as contents are.

A template that changes contents cannot be split this way. Contents that it merely strips or prints
as JSON are found in that form; the rest is rendered whole, with the first character of every
control text in the values replaced by a stand-in until the control tokens of the scaffolding have
been found.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from flowforge.engine.text.messages import Message, ToolCall, ToolSchema, bad_message
from flowforge.engine.text.prompt_rendering import Prompt, PromptRendering, behind_closing
from flowforge.engine.text.prompt_values import interleave, map_values, texts_of, unused_marker
from flowforge.engine.text.template_source import compile_template, read_template_source
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from flowforge.engine.text.prompt_rendering import Piece
    from flowforge.engine.text.tokenizer import Tokenizer

    View = dict[str, object]

_PROBE_TOOL = ToolSchema("probe_tool", "Probes.", {"type": "object", "properties": {}})
# Mistral's templates want ids of nine letters or digits.
_PROBE_CALL = ToolCall("probe_tool", {"key": "probe_value"}, "probe0001")

_logger = logging.getLogger(__name__)


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
        render_views = compile_template(source, tokenizer, today=today)
        self._tokenizer = tokenizer
        self._rendering = PromptRendering(source, render_views, tokenizer.special_tokens)
        self.splits = self._probe()

    def __repr__(self) -> str:
        return f"ChatTemplate(chars={len(self._rendering.source)} splits={self.splits})"

    @classmethod
    def from_directory(
        cls, directory: Path | str, tokenizer: Tokenizer, *, today: date | None = None
    ) -> ChatTemplate:
        """Load a model directory's template: chat_template.jinja, or from tokenizer_config.json.

        Raises EngineError EN302 when there is none, EN303 when it is no template.
        """
        return cls(read_template_source(directory), tokenizer, today=today)

    @property
    def source(self) -> str:
        """The template itself: what it says tells which tool format the model was trained on."""
        return self._rendering.source

    @property
    def takes_tools(self) -> bool:
        """Whether the template shows the model the tools that `render` is given."""
        prompt = Prompt((Message("user", "Hi"),), (_PROBE_TOOL,))
        return self._rendering.prints(prompt, _PROBE_TOOL.name)

    @property
    def takes_tool_calls(self) -> bool:
        """Whether messages may hold tool calls, and tool messages follow them."""
        result = Message("tool", "probe_result", name=_PROBE_CALL.name, tool_call_id=_PROBE_CALL.id)
        messages = (
            Message("user", "Hi"),
            Message("assistant", "", tool_calls=(_PROBE_CALL,)),
            result,
        )
        tools = (_PROBE_TOOL,) if self.takes_tools else ()
        return self._rendering.prints(Prompt(messages, tools), "probe_value", "probe_result")

    @property
    def takes_system(self) -> bool:
        """Whether the template has a place for a system message."""
        messages = (Message("system", "probe_system"), Message("user", "Hi"))
        return self._rendering.prints(Prompt(messages), "probe_system")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> list[int]:
        """Return the ids of a prompt.

        continue_final: end right after the last message's content, white space and all, instead
        of closing its turn and opening the next.
        Raises EngineError EN303 (template broken), EN304 (template refuses these messages, or has
        no place for one of them, its calls or the tools), EN305 (template is not safe), EN307 (no
        message to continue).
        """
        prompt = Prompt(tuple(messages), tuple(tools), add_generation_prompt)
        if not continue_final:
            return self._with_bos(self._encode(prompt))
        if not messages:
            raise bad_message("no message to continue, expected at least one")
        last = replace(messages[-1], tool_calls=())
        opened = replace(prompt, messages=(*messages[:-1], last), opens_reply=False)
        head, _ = self._cut(opened, len(messages) - 1)
        return self._with_bos(head + self._tokenizer.encode(last.content))

    def continuation(
        self,
        history: Sequence[Message],
        appended: Sequence[Message] = (),
        tools: Sequence[ToolSchema] = (),
        *,
        last_token: int | None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Return the ids that follow a generated turn when a conversation goes on.

        history: the messages so far; the last is the assistant's, and its content and calls are not
        looked at, since its generated ids stand as they are. appended: the messages after it.
        last_token: the last id that is in the sequence, None if nothing was generated. Where it
        is the id that closes the turn already, closing is not repeated.
        So with `prompt = render(history[:-1], tools)`, the whole is exactly
        `prompt + generated + continuation(history, appended, tools, last_token=generated[-1])`.
        Raises as `render` does; EN307 when history does not end with the assistant.
        """
        if not history or history[-1].role != "assistant":
            found = history[-1].role if history else "nothing"
            raise bad_message(f"the conversation ends with {found!r}, expected 'assistant'")
        said = replace(history[-1], tool_calls=())
        messages = (*history[:-1], said, *appended)
        prompt = Prompt(messages, tuple(tools), add_generation_prompt)
        _, tail = self._cut(prompt, len(history) - 1)
        return self._without_closing(tail, last_token)

    def pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        num_seen: int = 0,
        last_token: int | None = None,
    ) -> tuple[Piece, ...]:
        """What `render` makes ids of, or `continuation` behind the first `num_seen` messages.

        For people: joined, it is the text that the model reads there. last_token: as for
        `continuation`. Of a template that changes contents, all but control tokens is "content".
        Raises as those two do.
        """
        hole_idx = num_seen - 1 if num_seen else None
        shown = list(messages)
        if hole_idx is not None:
            shown[hole_idx] = replace(shown[hole_idx], tool_calls=())
        prompt = Prompt(tuple(shown), tuple(tools))
        layout = self._rendering.lay_out(prompt, self._rendering.text(prompt))
        if layout is None:
            pieces = self._pieces_of_whole(prompt, hole_idx)
        else:
            pieces = self._rendering.pieces_of_layout(layout, hole_idx, len(shown))
        if hole_idx is None:
            return (*self._bos_piece(pieces), *pieces)
        is_closed = last_token in self._tokenizer.eos_ids
        closing = self._text_of(last_token) if is_closed else None
        return tuple(pieces if closing is None else behind_closing(pieces, closing))

    def _pieces_of_whole(self, prompt: Prompt, hole_idx: int | None) -> list[Piece]:
        if hole_idx is None:
            views, tools, stand_ins = self._rendering.guard(prompt)
            text = self._rendering.render_views(views, tools, prompt.opens_reply)
        else:
            _, text, stand_ins = self._whole_around(prompt, hole_idx)
        restore = str.maketrans(dict(stand_ins))
        found = self._rendering.pieces_of(text, "content")
        return [(kind, one.translate(restore)) for kind, one in found]

    def _bos_piece(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """See `_with_bos`."""
        tokenizer = self._tokenizer
        text = self._text_of(tokenizer.bos_id) if tokenizer.adds_bos else None
        if text is not None and pieces[:1] != [("special", text)]:
            yield "special", text

    def _text_of(self, token: int | None) -> str | None:
        special = self._tokenizer.special_tokens.items()
        return next((text for text, token_id in special if token_id == token), None)

    def _without_closing(self, tail: list[int], last_token: int | None) -> list[int]:
        """Drop the end of the turn where it is there already; white space before it is dropped."""
        if last_token is None or last_token not in self._tokenizer.eos_ids:
            return tail
        if last_token not in tail:
            return tail
        place = tail.index(last_token)
        before = self._tokenizer.decode(tail[:place], skip_special=False)
        return tail if before.strip() else tail[place + 1 :]

    def _encode(self, prompt: Prompt) -> list[int]:
        text = self._rendering.text(prompt)
        self._check_tools(prompt, text)
        layout = self._rendering.lay_out(prompt, text)
        if layout is not None:
            return self._encode_pieces(layout.pieces, layout.values)
        views, tools, stand_ins = self._rendering.guard(prompt)
        guarded = self._rendering.render_views(views, tools, prompt.opens_reply)
        self._require_all_printed(prompt, views, guarded)
        return self._encode_whole(guarded, stand_ins)

    def _cut(self, prompt: Prompt, hole_idx: int) -> tuple[list[int], list[int]]:
        """Return the ids before and after one message's content."""
        text = self._rendering.text(prompt)
        self._check_tools(prompt, text)
        layout = self._rendering.lay_out(prompt, text)
        if layout is None:
            return self._cut_whole(prompt, hole_idx)
        place = layout.numbers.index(hole_idx)
        after = place + 1
        head = self._encode_pieces(layout.pieces[:after], layout.values[:place])
        return head, self._encode_pieces(layout.pieces[after:], layout.values[after:])

    def _cut_whole(self, prompt: Prompt, hole_idx: int) -> tuple[list[int], list[int]]:
        head, tail, stand_ins = self._whole_around(prompt, hole_idx)
        return self._encode_whole(head, stand_ins), self._encode_whole(tail, stand_ins)

    def _whole_around(self, prompt: Prompt, hole_idx: int) -> tuple[str, str, dict[str, str]]:
        """The text before and after one message's content, and what stands in for what in it."""
        views, tools, stand_ins = self._rendering.guard(prompt)
        mark = unused_marker([self._rendering.source, texts_of(views), texts_of(tools)])
        views[hole_idx]["content"] = mark
        head, found, tail = self._rendering.render_views(
            views, tools, prompt.opens_reply
        ).partition(mark)
        if not found or mark in tail:
            raise EngineError(
                "EN303",
                f"chat template prints the {views[hole_idx]['role']!r} message's content "
                f"{'more than once' if found else 'not at all'}, expected once",
                help="this template cannot be continued: give the whole conversation instead",
            )
        return head, tail, stand_ins

    def _require_all_printed(self, prompt: Prompt, views: Sequence[View], text: str) -> None:
        """Some templates pass over roles that they do not know, and the model never sees the text.

        Raises EngineError EN304 for a message that is neither in `text` nor printed in any form;
        words beside a call that is printed are only told to be lost.
        """
        marked = self._rendering.render_marked(prompt)
        printed = [] if marked is None else marked[1]
        for idx, view in enumerate(views):
            if idx in printed or str(view["content"]).strip() in text:
                continue
            if prompt.messages[idx].tool_calls:
                _logger.warning(
                    "chat template leaves out what the message at place %d says beside its calls",
                    idx,
                )
                continue
            raise EngineError(
                "EN304",
                f"chat template leaves out the {view['role']!r} message at place {idx}",
                help="the model knows no such message there: say it in a user message",
            )

    def _check_tools(self, prompt: Prompt, text: str) -> None:
        """Raises EngineError EN304 where `text` would be the same without the tools.

        A call that is left out is only told: the conversation can still be shown to a model whose
        template knows none, as the text that the messages are.
        """
        if prompt.tools:
            if self._rendering.is_text_of(replace(prompt, tools=()), text):
                raise EngineError(
                    "EN304",
                    "chat template has no place for tools",
                    help="describe the tools in the system message, or take a model that was "
                    "trained to call tools",
                )
            self._require_unforged(prompt, text)
        for idx, message in enumerate(prompt.messages):
            if message.tool_calls:
                silent = list(prompt.messages)
                silent[idx] = replace(message, tool_calls=())
                if self._rendering.is_text_of(replace(prompt, messages=tuple(silent)), text):
                    _logger.warning(
                        "chat template leaves out the tool calls of the message at place %d: "
                        "write the call as the message's content",
                        idx,
                    )

    def _require_unforged(self, prompt: Prompt, text: str) -> None:
        """Raises EngineError EN307 where a tool's text and scaffolding make a control token.

        A tool named 's' in a template that prints <NAME> would end the text.
        """
        marker = unused_marker([self._rendering.source, prompt.texts()])

        def fence(value: str) -> str:
            return f"{marker}{value}{marker}"

        tools = cast("list[View]", map_values(prompt.tool_views(), fence))
        try:
            fenced = self._rendering.render_views(prompt.views(), tools, prompt.opens_reply)
        except EngineError:
            return  # it wants values of some form; what it printed without fences stands
        if fenced.replace(marker, "") != text:
            return
        meant, found = (
            self._rendering.control.findall(fenced),
            self._rendering.control.findall(text),
        )
        if meant != found:
            forged = next(
                token
                for token, other in itertools.zip_longest(found, meant)
                if token is not None and token != other
            )
            raise bad_message(f"a tool's text makes the control token {forged!r} in this template")

    def _encode_pieces(self, pieces: Sequence[str], values: Sequence[str]) -> list[int]:
        """Encode scaffolding and values in turn; `pieces` may be one longer than `values`."""
        token_ids: list[int] = []
        for piece, value in itertools.zip_longest(pieces, values):
            token_ids += self._tokenizer.encode_scaffolding(piece)
            token_ids += self._tokenizer.encode(value or "")
        return token_ids

    def _encode_whole(self, text: str, stand_ins: Mapping[str, str]) -> list[int]:
        token_ids: list[int] = []
        restore = str.maketrans(dict(stand_ins))
        end = 0
        for hit in self._rendering.control.finditer(text):
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
        messages = (Message("user", " a\n"), Message("assistant", "\n b "), Message("user", "c "))
        prompt = Prompt(messages)
        try:
            text = self._rendering.text(prompt)
            layout = self._rendering.lay_out(prompt, text)
        except EngineError as error:
            if error.code == "EN305":
                return False  # rendering says so to whoever asks for a prompt
            _logger.warning("chat template fails on a plain conversation: %s", error.message)
            return False
        contents = [message.content for message in messages]
        if layout is not None and interleave(layout.pieces, contents) == text:
            return True
        _logger.warning(
            "chat template changes message contents: prompts are split at stripped contents or "
            "rendered whole, and a long conversation's prefix may be computed again"
        )
        return False
