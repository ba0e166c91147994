"""What a template makes of a prompt, taken apart into scaffolding and values.

`ChatTemplate` encodes what is found here; nothing here knows of token ids but the texts of control
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from flowforge.engine.text.messages import Message, ToolSchema, bad_message, message_view, tool_view
from flowforge.engine.text.prompt_values import (
    align,
    alternation,
    hole,
    map_texts,
    split_at_holes,
    texts_of,
    unused_characters,
    unused_marker,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    View = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a template is given. opens_reply: whether the assistant's turn is opened at the end."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    opens_reply: bool = True

    def views(self) -> list[View]:
        """The messages as templates read them; new objects at each call."""
        return [message_view(message) for message in self.messages]

    def tool_views(self) -> list[View]:
        """The tools as templates read them."""
        return [tool_view(tool) for tool in self.tools]

    def texts(self) -> str:
        """Every text in the prompt, joined."""
        return texts_of(self.views()) + texts_of(self.tool_views())


PieceKind = Literal["special", "template", "content"]
Piece: TypeAlias = tuple[PieceKind, str]
"""Part of a prompt as the model reads it: a control token, other words of the template, or what a
message says."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt's text in turn: scaffolding (one piece more than values) and values.

    numbers: which value stands in each place. A message's content has the message's index; control
    texts of tools and calls have higher ones.
    """

    pieces: list[str]
    numbers: list[int]
    values: list[str]


class PromptRendering:
    """One template's way from prompts to texts. Immutable.

    control: a pattern for the texts of control tokens. render_views: see `compile_template`.
    """

    def __init__(
        self,
        source: str,
        render_views: Callable[[Sequence[View], Sequence[View], bool], str],
        control_texts: Iterable[str],
    ) -> None:
        texts = list(control_texts)
        self.source = source
        self.render_views = render_views
        self.control = alternation(texts)
        self._first_chars = sorted({text[0] for text in texts})

    def text(self, prompt: Prompt) -> str:
        """What the template prints. Raises EngineError EN303, EN304, EN305."""
        return self.render_views(prompt.views(), prompt.tool_views(), prompt.opens_reply)

    def is_text_of(self, prompt: Prompt, text: str) -> bool:
        """Whether the template takes this prompt and prints exactly this text."""
        try:
            return self.text(prompt) == text
        except EngineError:
            return False

    def prints(self, prompt: Prompt, *texts: str) -> bool:
        """Whether the template takes this prompt and all these texts are in what it prints."""
        try:
            printed = self.text(prompt)
        except EngineError:
            return False
        return all(text in printed for text in texts)

    def lay_out(self, prompt: Prompt, text: str) -> Layout | None:
        """Split a prompt's text; None where values do not stand in it as they are, in order."""
        marked = self.render_marked(prompt)
        if marked is None:
            return None
        pieces, numbers, of_number = marked
        contents = [number for number in numbers if number < len(prompt.messages)]
        if contents != [idx for idx, message in enumerate(prompt.messages) if _has_hole(message)]:
            return None
        values = align(pieces, [of_number[number] for number in numbers], text)
        return None if values is None else Layout(pieces, numbers, values)

    def render_marked(self, prompt: Prompt) -> tuple[list[str], list[int], list[str]] | None:
        """Render with a hole for each value: scaffolding, the holes' numbers, values by number.

        None where the template does not take placeholders: it wants contents of some form.
        """
        marker = unused_marker([self.source, prompt.texts()])
        values = [message.content for message in prompt.messages]

        def take_out(text: str) -> str:
            def note(hit: re.Match[str]) -> str:
                values.append(hit[0])
                return hole(marker, len(values) - 1)

            return self.control.sub(note, text)

        views: list[View] = []
        for idx, (message, view) in enumerate(zip(prompt.messages, prompt.views(), strict=True)):
            marked = cast("View", map_texts({**view, "content": ""}, take_out))
            marked["content"] = hole(marker, idx) if _has_hole(message) else ""
            views.append(marked)
        tools = cast("list[View]", map_texts(prompt.tool_views(), take_out))
        try:
            text = self.render_views(views, tools, prompt.opens_reply)
        except EngineError as error:
            if error.code == "EN305":
                raise
            return None
        return *split_at_holes(marker, text), values

    def pieces_of(self, text: str, kind: PieceKind) -> Iterator[Piece]:
        """A text with its control tokens told apart. kind: of what stands between them."""
        end = 0
        for hit in self.control.finditer(text):
            if hit.start() > end:
                yield kind, text[end : hit.start()]
            yield "special", hit[0]
            end = hit.end()
        if end < len(text):
            yield kind, text[end:]

    def pieces_of_layout(
        self, layout: Layout, hole_idx: int | None, num_messages: int
    ) -> list[Piece]:
        """A prompt in pieces, or what of it stands behind the content of one message."""
        start = 0 if hole_idx is None else layout.numbers.index(hole_idx) + 1
        found = [*self.pieces_of(layout.pieces[start], "template")]
        for at in range(start, len(layout.numbers)):
            if layout.values[at]:
                is_content = layout.numbers[at] < num_messages
                found.append(("content" if is_content else "template", layout.values[at]))
            found += self.pieces_of(layout.pieces[at + 1], "template")
        return found

    def guard(self, prompt: Prompt) -> tuple[list[View], list[View], dict[str, str]]:
        """Put stand-ins into values wherever they spell a control token.

        Returns messages and tools, and the map from stand-in to the character it stands for.
        """
        unused = unused_characters([self.source, prompt.texts()])
        stand_in_of = dict(zip(self._first_chars, unused, strict=False))
        if len(stand_in_of) < len(self._first_chars):
            raise bad_message("the messages hold every private-use character, expected some unused")

        def guard(text: str) -> str:
            return self._guard_text(text, stand_in_of)

        views = cast("list[View]", map_texts(prompt.views(), guard))
        tools = cast("list[View]", map_texts(prompt.tool_views(), guard))
        return views, tools, {stand_in: char for char, stand_in in stand_in_of.items()}

    def _guard_text(self, text: str, stand_in_of: Mapping[str, str]) -> str:
        # Again until nothing is left: replacing one can uncover another that overlapped it.
        while self.control.search(text):
            text = self.control.sub(lambda hit: stand_in_of[hit[0][0]] + hit[0][1:], text)
        return text


def behind_closing(pieces: list[Piece], closing: str) -> list[Piece]:
    """The pieces without the control token that closes a turn, where they begin with it."""
    if ("special", closing) not in pieces:
        return pieces
    place = pieces.index(("special", closing))
    is_first = not "".join(text for _, text in pieces[:place]).strip()
    return pieces[place + 1 :] if is_first else pieces


def _has_hole(message: Message) -> bool:
    # Templates print nothing for the content of a message that only calls: a placeholder would
    # bring out the white space around it.
    return bool(message.content) or not message.tool_calls
