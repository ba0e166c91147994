"""Answers under Lark grammars in Python flows: a text with its tree, or what is made of that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from flowforge.errors import WorkflowError
from flowforge.flows.answers import require_not_cut_off
from flowforge.language.answer_grammars import kind_of_grammar
from flowforge.language.answer_specs import GrammarSpec

if TYPE_CHECKING:
    from lark import Token, Transformer, Tree

    from flowforge.backends.protocol import GenerationDone

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedText:
    """An answer under a grammar, and how lark parses it."""

    text: str
    tree: Tree[Token]


def grammar_spec(
    grammar: str | Path, start: str, parser: Literal["earley", "lalr"], approximate: bool
) -> GrammarSpec:
    """The grammar that an author means: a file, 'flowforge/NAME', or a grammar's own text.

    A path counts from the working directory. Raises WorkflowError WF430 for a file that cannot be
    read, and for a word that is neither.
    """
    spec = GrammarSpec("", "", start=start, parser=parser, is_approximate=approximate)
    kind = "file" if isinstance(grammar, Path) else kind_of_grammar(grammar)
    return _completed(spec, kind, str(grammar))


def _completed(spec: GrammarSpec, kind: str, grammar: str) -> GrammarSpec:
    from flowforge.grammars.lark.source import LarkSource

    match kind:
        case "text":
            return replace(spec, text=grammar, file="<grammar>", is_inline=True)
        case "name":
            return replace(spec, file=grammar, is_shipped=True)
        case "file":
            source = LarkSource.of_file(Path(grammar))
            folder = str(Path(grammar).resolve().parent)
            return replace(spec, text=source.text, file=source.file, folder=folder)
        case _:
            raise WorkflowError(
                "WF430",
                f"{grammar[:40]!r} is neither a grammar nor a file of one",
                help="give a file 'my.lark', a shipped one 'flowforge/json', or the text itself",
            )


async def parsed_answer(path: str, done: GenerationDone, spec: GrammarSpec) -> ParsedText:
    """Have lark parse an answer, in a thread.

    Raises WorkflowError WF501 when it was cut off, WF433 and WF434 as `LarkGrammar.parse`.
    """
    require_not_cut_off(path, done)

    def parse() -> ParsedText:
        from flowforge.backends.answer_grammars import lark_grammar

        return ParsedText(done.text, lark_grammar(spec).parse(done.text))

    return await anyio.to_thread.run_sync(parse)


def transformed(answer: ParsedText, transformer: Transformer[Any, T] | None) -> ParsedText | T:
    """What a transformer makes of an answer's tree; the answer itself without one."""
    return answer if transformer is None else transformer.transform(answer.tree)
