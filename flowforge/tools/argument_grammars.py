"""Lark grammars of arguments, as a function's type hints or a workflow file declare them."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flowforge.errors import WorkflowError
from flowforge.grammars.tool_formats import ArgumentGrammar
from flowforge.language.answer_grammars import kind_of_grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.grammars.lark.source import LarkSource
    from flowforge.language.answer_specs import GrammarSpec


@dataclass(frozen=True, slots=True)
class Grammar:
    """Holds an argument of a tool to a Lark grammar.

        def query(sql: Annotated[str, ff.Grammar("flowforge/sql_select")]) -> list[str]: ...

    grammar: a .lark file, a shipped one such as 'flowforge/json', or the grammar itself; a path
    counts from the file of the function. start, parser, approximate: as for `Chat.parse`.
    """

    grammar: str | Path
    start: str = "start"
    parser: Literal["earley", "lalr"] = "earley"
    approximate: bool = False


class MisplacedGrammarError(Exception):
    """A grammar of what is no text; the message says where."""


def grammars_of_hints(hints: Mapping[str, Any]) -> dict[str, Grammar]:
    """The grammars among a function's type hints, by argument. Raises MisplacedGrammarError."""
    found: dict[str, Grammar] = {}
    for name, hint in hints.items():
        held = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Grammar)]
        if name == "return" or not (held or _holds_grammar(hint)):
            continue
        if len(held) != 1 or typing.get_args(hint)[0] is not str:
            raise MisplacedGrammarError(
                f"the grammar of parameter {name!r} is not of a text: write "
                f"{name}: Annotated[str, Grammar(…)]"
            )
        found[name] = held[0]
    return found


def resolve_grammar(grammar: Grammar, function: Callable[..., object]) -> ArgumentGrammar:
    """The grammar with its text. Raises WorkflowError WF430 where that cannot be read."""
    kind, text = "file", str(grammar.grammar)
    if not isinstance(grammar.grammar, Path):
        kind = kind_of_grammar(grammar.grammar)
    return _resolved(_source(kind, text, _folder_of(function)), grammar)


def grammar_of_spec(spec: GrammarSpec) -> ArgumentGrammar:
    """The grammar that a workflow file declares."""
    from flowforge.grammars.lark.shipped import shipped_source
    from flowforge.grammars.lark.source import LarkSource

    folder = None if spec.folder is None else Path(spec.folder)
    source = (
        shipped_source(spec.file) if spec.is_shipped else LarkSource(spec.text, spec.file, folder)
    )
    return _resolved(source, Grammar("", spec.start, spec.parser, spec.is_approximate))


def _source(kind: str, grammar: str, folder: Path) -> LarkSource:
    from flowforge.grammars.lark.shipped import shipped_source
    from flowforge.grammars.lark.source import LarkSource

    match kind:
        case "text":
            return LarkSource(grammar, "<grammar>")
        case "name":
            return shipped_source(grammar)
        case "file":
            return LarkSource.of_file(folder / grammar)
        case _:
            raise WorkflowError(
                "WF430",
                f"{grammar[:40]!r} is neither a grammar nor a file of one",
                help="give a file 'my.lark', a shipped one 'flowforge/json', or the text itself",
            )


def _resolved(source: LarkSource, options: Grammar) -> ArgumentGrammar:
    return ArgumentGrammar(
        source.text,
        source.file,
        None if source.folder is None else str(source.folder),
        options.start,
        options.parser,
        options.approximate,
    )


def _folder_of(function: Callable[..., object]) -> Path:
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        file = None
    return Path.cwd() if file is None else Path(file).resolve().parent


def _holds_grammar(hint: object) -> bool:
    """Whether a grammar stands somewhere inside a type hint."""
    if any(isinstance(one, Grammar) for one in getattr(hint, "__metadata__", ())):
        return True
    return any(_holds_grammar(one) for one in typing.get_args(hint))
