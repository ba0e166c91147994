"""The grammar of one argument: what the mask makes of it inside a call, and lark as its judge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowforge.errors import WorkflowError
from flowforge.grammars.tool_formats.values import NotEnforceable

if TYPE_CHECKING:
    from flowforge.grammars.lark.grammar import LarkGrammar
    from flowforge.grammars.tool_formats.description import LiteralSyntax
    from flowforge.grammars.tool_formats.lark_text import LarkText

# What JSON writes as an escape.
_ESCAPED = '"\\' + "".join(map(chr, range(0x20)))
# Marks that end a text hold one of these; the first is missed least in a text.
_LEAST_MISSED = "|/<"


@dataclass(frozen=True, slots=True)
class ArgumentGrammar:
    """A Lark grammar that an argument, a text, is in.

    text: of the grammar. file: for messages. folder: where imports look first. approximate: as for
    `load_lark`. Plain values, so that it can be written down with the tool.
    """

    text: str
    file: str
    folder: str | None = None
    start: str = "start"
    parser: Literal["earley", "lalr"] = "earley"
    approximate: bool = False

    def load(self) -> LarkGrammar:
        """The grammar, loaded once. Raises WorkflowError WF430 to WF432."""
        return _load(self)

    def judge(self, text: str) -> None:
        """Raises WorkflowError WF433 for a text that lark refuses, WF434 when that takes long."""
        self.load().parse(text)


def text_in_literal(lark: LarkText, grammar: ArgumentGrammar, syntax: LiteralSyntax) -> str:
    """An expression for a text of the grammar as a string of a syntax. Raises NotEnforceable."""
    closing = syntax.string_close
    excluded = _ESCAPED if syntax.escapes else _marking(lark, closing)
    inside = _nested(lark, grammar, excluded)
    return f"{lark.exactly(syntax.string_open)} {inside} {lark.exactly(closing)}"


def text_before(lark: LarkText, grammar: ArgumentGrammar, ending: str) -> str:
    """An expression for a raw text of the grammar and what ends it. Raises NotEnforceable."""
    return f"{_nested(lark, grammar, _marking(lark, ending))} {lark.exactly(ending)}"


def _nested(lark: LarkText, grammar: ArgumentGrammar, excluded: str) -> str:
    """The grammar's texts that have none of these characters.

    So each is written as it is, and the lexer, which never goes back, sees where it ends.
    Raises WorkflowError WF430 to WF432 for a grammar that is of no use anywhere.
    """
    # What is wrong with the grammar itself is the author's to mend.
    grammar.load()
    try:
        return lark.nested(_mask(grammar, excluded))
    except WorkflowError as error:
        raise NotEnforceable(f"the grammar {grammar.file!r} ({error.message})") from error


def _marking(lark: LarkText, ending: str) -> str:
    """A character without which no text holds the ending, or is taken for the beginning of it."""
    if lark.pieces(ending) == [ending] and lark.is_control(ending):
        # A token of its own: a text may begin like it, and only never be all of it.
        return next((char for char in _LEAST_MISSED if char in ending), ending[0])
    return ending[0]


@lru_cache(maxsize=64)
def _mask(grammar: ArgumentGrammar, excluded: str) -> str:
    return grammar.load().mask_without(excluded)


@lru_cache(maxsize=64)
def _load(grammar: ArgumentGrammar) -> LarkGrammar:
    from flowforge.grammars.lark.grammar import load_lark
    from flowforge.grammars.lark.source import LarkSource

    folder = None if grammar.folder is None else Path(grammar.folder)
    source = LarkSource(grammar.text, grammar.file, folder)
    return load_lark(
        source, start=grammar.start, parser=grammar.parser, approximate=grammar.approximate
    )
