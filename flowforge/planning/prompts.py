"""Prompts before the run: the template's scaffolding around contents that are known in part.

Where every content is known, the ids are exactly those of a run. A content that is not becomes a
hole: the template is laid out around a stand-in, and what is known of it takes the stand-in's
place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from flowforge.planning.prefixes import Element, Opaque, Recomputation, length_of
from flowforge.planning.quantity import Quantity, total
from flowforge.planning.values import (
    MOST_AT_SEAM,
    Pieces,
    combined_key,
    key_of,
    text_of_pieces,
    tokens_of_pieces,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["system", "user", "assistant"]
Turn: TypeAlias = "tuple[Role, str]"

_STAND_IN = "x"


class Tokenizing(Protocol):
    """What planning needs of a model: its tokens, its template and its limits."""

    @property
    def context_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        ...

    @property
    def recomputation(self) -> Recomputation:
        """What is computed again of a prompt that is cached whole."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a content."""
        ...

    def prompt(self, turns: Sequence[Turn]) -> Sequence[int]:
        """The ids after which the model writes the next turn."""
        ...

    def until_content(self, turns: Sequence[Turn]) -> Sequence[int]:
        """The ids up to the end of the last turn's content, its closing left out."""
        ...

    def closes_turn(self, token_id: int) -> bool:
        """Whether a model ends its turn with this token."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenContent:
    """What a model will have written. written: tokens with KV. pending: those behind, closing too.

    beginning: the text that was put into its mouth.
    """

    key: str
    beginning: Pieces
    written: Quantity
    pending: Quantity


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One turn of a conversation, as far as it is known."""

    role: Role
    content: Pieces | WrittenContent


def lay_out(turns: Sequence[PlannedTurn], tokens: Tokenizing) -> tuple[Element, ...]:
    """The elements of the prompt after which the model writes the next turn."""
    plain: list[Turn] = [(turn.role, _plain_content(turn)) for turn in turns]
    whole = tokens.prompt(plain)
    elements: list[Element] = []
    position = 0
    for idx, turn in enumerate(turns):
        if _is_plain(turn):
            continue
        head = tokens.until_content(plain[: idx + 1])
        stop = len(head)
        start = stop - len(tokens.encode(_STAND_IN))
        if start < position or list(whole[:stop]) != list(head):
            return _lay_out_as_one(turns, len(whole), tokens)
        elements += [*whole[position:start], *_content(turn.content, tokens)]
        position = stop
        is_written = isinstance(turn.content, WrittenContent)
        if is_written and position < len(whole) and tokens.closes_turn(whole[position]):
            position += 1
    return (*elements, *whole[position:])


def elements_of_text(pieces: Pieces, tokens: Tokenizing) -> tuple[Element, ...]:
    """A content: ids as far as they are certain, then the rest as one run."""
    text = text_of_pieces(pieces)
    if isinstance(text, str):
        return tuple(tokens.encode(text))
    first = pieces[0] if isinstance(pieces[0], str) else ""
    # The last tokens of a known beginning may be others, once something follows.
    certain = tuple(tokens.encode(first))[:-MOST_AT_SEAM]
    size = tokens_of_pieces(pieces, lambda known: len(tokens.encode(known)))
    most = None if size.most is None else size.most - len(certain)
    rest = Quantity(max(0, size.least - len(certain)), most)
    return (*certain, Opaque(key_of(text), rest))


def written_run(content: WrittenContent) -> Opaque:
    """The part of an answer whose KV decoding writes."""
    return Opaque(f"{content.key}:written", content.written)


def _content(content: Pieces | WrittenContent, tokens: Tokenizing) -> tuple[Element, ...]:
    if isinstance(content, WrittenContent):
        beginning = elements_of_text(content.beginning, tokens)
        pending = Opaque(f"{content.key}:pending", content.pending)
        return (*beginning, written_run(content), pending)
    return elements_of_text(content, tokens)


def _is_plain(turn: PlannedTurn) -> bool:
    if isinstance(turn.content, WrittenContent):
        return False
    return all(isinstance(piece, str) for piece in turn.content)


def _plain_content(turn: PlannedTurn) -> str:
    if isinstance(turn.content, WrittenContent):
        return _STAND_IN
    text = text_of_pieces(turn.content)
    return text if isinstance(text, str) else _STAND_IN


def _lay_out_as_one(
    turns: Sequence[PlannedTurn], num_plain: int, tokens: Tokenizing
) -> tuple[Element, ...]:
    """For a template that moves with its contents: nothing but the size is known."""
    contents = [_content(turn.content, tokens) for turn in turns if not _is_plain(turn)]
    size = total(map(length_of, contents))
    most = None if size.most is None else size.most + num_plain
    keys = [_key_of_turn(turn) for turn in turns]
    return (Opaque(combined_key("prompt", keys), Quantity(1, most)),)


def _key_of_turn(turn: PlannedTurn) -> str:
    content = turn.content
    return content.key if isinstance(content, WrittenContent) else key_of(text_of_pieces(content))
