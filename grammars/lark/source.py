"""A Lark grammar as lark itself reads it: imports resolved, templates expanded, compiled."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowforge.errors import Location, WorkflowError
from flowforge.grammars.characters import half_of_a_pair
from flowforge.grammars.lark.places import Places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lark import Lark
    from lark.lexer import TerminalDef
    from lark.load_grammar import PackageResource

    from flowforge.grammars.lark.regex_tree import Regex

Parser = Literal["earley", "lalr"]
MAX_CHARS = 200_000
MAX_RULES = 10_000
MAX_TERMINALS = 1_000
_PLACE = re.compile(r"(?:at |\()?line (\d+),? col(?:umn)? (\d+)(?: in [^\n]*)?:?")
_QUOTED = re.compile(r"'([^']+)'")


@dataclass(frozen=True, slots=True)
class LarkSource:
    """The text of a grammar. file: its path, or how messages call a text that is in no file.

    folder: where relative imports look; None for a text that cannot have them.
    """

    text: str
    file: str
    folder: Path | None = None

    @classmethod
    def of_file(cls, path: Path | str) -> LarkSource:
        """Read a grammar file. Raises WorkflowError WF430 when it cannot be read."""
        path = Path(path)
        try:
            text = _text_of(path)
        except OSError as error:
            message = f"the grammar {str(path)!r} cannot be read: {(error.strerror or '').lower()}"
            raise WorkflowError("WF430", message, help="check the path") from error
        return cls(text, str(path), path.parent)


@dataclass(frozen=True, slots=True)
class LoadedGrammar:
    """A grammar that lark accepts.

    lark: parses texts. places: where things are defined. made_safe: what terminals match that are
    matched by another regex than the author's, see `safe_patterns`.
    """

    source: LarkSource
    start: str
    parser: Parser
    lark: Lark
    places: Places
    made_safe: Mapping[str, Regex]

    @property
    def terminals(self) -> Sequence[TerminalDef]:
        """The terminals, also those that only unreachable rules use."""
        return tuple(self.lark.terminals)

    def shown(self, terminal: str) -> str:
        """A terminal in messages: its text where it has only one, or else its name."""
        for definition in self.terminals:
            if definition.name == terminal and definition.pattern.type == "str":
                return repr(definition.pattern.value)
        return "the end" if terminal == "$END" else terminal


def load_grammar(
    source: LarkSource, *, start: str = "start", parser: Parser = "earley"
) -> LoadedGrammar:
    """Load a grammar with lark.

    Raises WorkflowError: WF430 when it is too large or an import cannot be read, WF431 when lark
    refuses it, with the place where lark names one.
    """
    from lark import Lark
    from lark.exceptions import LarkError
    from lark.load_grammar import GrammarBuilder

    from flowforge.grammars.lark.safe_patterns import make_safe

    if len(source.text) > MAX_CHARS:
        message = f"the grammar has {len(source.text):,} characters, expected at most {MAX_CHARS:,}"
        raise WorkflowError("WF430", message, location=Location(source.file, 1, 1))
    half = half_of_a_pair(source.text)
    if half is not None:
        message = f"the grammar is no text: {half}"
        raise WorkflowError("WF431", message, location=Location(source.file, 1, 1))
    # To lark a text of nowhere is one of the current folder: this one has no files beside it.
    name = str((source.folder or Path(os.devnull)) / Path(source.file).name)
    made_safe: dict[str, Regex] = {}

    def edit(terminal: TerminalDef) -> None:
        language = make_safe(terminal)
        if language is not None:
            made_safe[terminal.name] = language

    builder = GrammarBuilder(import_paths=[partial(_import_beside, source.folder), _import_shipped])
    try:
        builder.load_grammar(source.text, name)
        places = Places(source.text, source.file, builder.used_files)
        loaded = Lark(builder.build(), start=start, parser=parser, edit_terminals=edit)
    except OSError as error:
        raise _not_found(error, source) from error
    except (LarkError, re.error, AssertionError, KeyError, RecursionError) as error:
        raise _refused(error, source, start) from error
    for what, count, limit in (
        ("rules", len(loaded.rules), MAX_RULES),
        ("terminals", len(loaded.terminals), MAX_TERMINALS),
    ):
        if count > limit:
            message = f"the grammar has {count:,} {what}, expected at most {limit:,}"
            raise WorkflowError("WF430", message, location=Location(source.file, 1, 1))
    return LoadedGrammar(source, start, parser, loaded, places, made_safe)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except ValueError as error:
        message = f"the grammar {str(path)!r} cannot be read: {error}"
        raise WorkflowError("WF430", message, help="save it as UTF-8") from error


def _import_beside(
    folder: Path | None, base_path: str | PackageResource | None, grammar_path: str
) -> tuple[str, str]:
    """Lark's way to import from beside the grammar, or beside the file that imports."""
    for place in (folder, base_path):
        if isinstance(place, str | Path) and (path := Path(place, grammar_path)).is_file():
            return str(path), _text_of(path)
    raise FileNotFoundError(grammar_path)


def _import_shipped(base_path: object, grammar_path: str) -> tuple[PackageResource, str]:
    """Lark's way to import from elsewhere: `%import flowforge.json`, from the shipped grammars."""
    from lark.load_grammar import PackageResource

    package, _, file = grammar_path.partition(os.sep)
    resource = resources.files("flowforge.grammars").joinpath(file)
    if package != "flowforge" or not file or not resource.is_file():
        raise FileNotFoundError(grammar_path)
    return PackageResource("flowforge.grammars", file), resource.read_text("utf-8")


def _not_found(error: OSError, source: LarkSource) -> WorkflowError:
    wanted = Path(str(error.filename))
    places = Places(source.text, source.file, {})
    return WorkflowError(
        "WF430",
        f"the imported grammar {str(wanted)!r} cannot be read: {(error.strerror or '').lower()}",
        location=places.of_import(wanted.stem),
        help="imports are looked for beside the grammar and in lark's library; flowforge.json and "
        "others are shipped",
    )


def _reason(error: Exception) -> str:
    """Lark's words, where they are for users."""
    from lark.lexer import TerminalDef

    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, re.error):
        return f"no regex of Python's: {error}"
    match error.args:
        case (str(text), TerminalDef(name=name)):
            # Of Earley with a lexer of its own, about a regex that matches nothing at all.
            reason = "may match the empty text" if "zero-width" in text else text
            return f"terminal '{name}' {reason}"
        case _:
            return re.sub(r"(?:Non)?Terminal\(('\w+')\)", r"\1", str(error))


def _refused(error: Exception, source: LarkSource, start: str) -> WorkflowError:
    text = _reason(error)
    head = text.split("\n", 1)[0].strip()
    found = _PLACE.search(text)
    location = None
    if found is not None:
        location = Location(source.file, int(found[1]), max(1, int(found[2])))
        head = _PLACE.sub("", head).strip(" ,:")
    elif (line := getattr(error, "line", None)) is not None:
        location = Location(source.file, int(line), int(getattr(error, "column", 1)))
    places = Places(source.text, source.file, {})
    names = [*_QUOTED.findall(text), *re.findall(r"\b\w+\b", text)]
    if location is None and isinstance(error, re.error):
        location = places.of_broken_regex()
    if location is None:
        location = next((place for name in names if (place := places.of_name(name))), None)
    help = None
    if repr(start) in text and places.of_name(start) is None:
        rules = ", ".join(list(places.rules)[:8]) or "none"
        help = f"say with 'start' where the grammar begins; its rules: {rules}"
    message = f"lark refuses the grammar: {head[:1].lower()}{head[1:]}"
    return WorkflowError(
        "WF431", message, location=location or Location(source.file, 1, 1), help=help
    )
