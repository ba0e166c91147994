"""What a tool format is made of.

One `ToolFormat` describes how a model family writes its calls. The grammar that holds the model to
it, the parser that reads what it wrote, and the writer of examples all walk the same parts, so
they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this. Control tokens are meant where the model's tokenizer has them."""

    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """White space that a model may leave out; `usual` is what its template writes."""

    usual: str


@dataclass(frozen=True, slots=True)
class Name:
    """The tool's name. Comes before `Arguments`, once in a call."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments, in the format's syntax; once in a call."""


@dataclass(frozen=True, slots=True)
class CallId:
    """An id that the model gives the call: a regex, and one that matches it."""

    pattern: str
    example: str


Part: TypeAlias = Text | Gap | Name | Arguments | CallId
Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class LiteralSyntax:
    """Arguments as literals of a programming language.

    opening, closing: around the arguments. pair_separator: between key and value of an argument;
    item_separator: between arguments, items and pairs. quotes_argument_names, quotes_keys: whether
    the names of arguments, and the keys of objects inside them, are strings.
    string_open, string_close: around a string. escapes: whether a string is written as in JSON;
    otherwise it is raw and cannot contain `string_close`.
    """

    opening: str = "{"
    closing: str = "}"
    pair_separator: str = ": "
    item_separator: str = ", "
    quotes_argument_names: bool = True
    quotes_keys: bool = True
    inner_pair_separator: str = ": "
    true: str = "true"
    false: str = "false"
    null: str = "null"
    string_open: str = '"'
    string_close: str = '"'
    escapes: bool = True

    @property
    def is_json(self) -> bool:
        """Whether values inside are JSON."""
        return self.escapes and self.quotes_keys and self.true == "true"


@dataclass(frozen=True, slots=True)
class TaggedSyntax:
    """Each argument between tags: a text as it is, anything else as JSON.

    before_name, before_value: what stands there. after_value: ends a text, which cannot contain
    it; no beginning of it is also an end of it, so the first one found is the end.
    after: white space or text between arguments.
    """

    before_name: str
    before_value: Parts
    after_value: str
    after: Parts = ()


ArgumentSyntax: TypeAlias = LiteralSyntax | TaggedSyntax


@dataclass(frozen=True, slots=True)
class Span:
    """What stands around a part of an answer. after: what is written behind it, if more follows."""

    opening: str
    closing: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way to call tools.

    begin: once before the first call. call: one call. separator: between calls; None where one
    answer holds one call. end: once after the last.
    anywhere: whether free text may come before the calls; otherwise an answer that does not begin
    with a call is text. content: around free text, in formats that mark it. reasoning: around
    what the model thinks first, in formats that mark it.
    signs: texts of a chat template that speaks this format; all of them are there.
    """

    name: str
    call: Parts
    arguments: ArgumentSyntax
    begin: Parts = ()
    separator: Parts | None = ()
    end: Parts = ()
    anywhere: bool = True
    content: Span | None = None
    reasoning: Span | None = None
    signs: tuple[str, ...] = ()

    @property
    def trigger(self) -> str:
        """The text that every first call begins with, up to its name."""
        texts: list[str] = []
        for part in (*self.begin, *self.call):
            if not isinstance(part, Text):
                break
            texts.append(part.text)
        return "".join(texts)
