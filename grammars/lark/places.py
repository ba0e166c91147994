"""Where the terminals, rules and patterns of a grammar are written.

What lark compiles carries no places; its grammar parser gives them once more.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowforge.errors import Location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lark import Token, Tree
    from lark.lexer import Pattern


@dataclass(slots=True)
class _Definition:
    """A rule or terminal as written. literals: its texts and regexes."""

    location: Location
    is_rule: bool
    literals: list[Token] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _File:
    name: str
    definitions: dict[str, _Definition] = field(default_factory=dict)
    imports: dict[str, Location] = field(default_factory=dict)
    ignored: list[_Definition] = field(default_factory=list)


class Places:
    """The places of one grammar and of those that it imports; files are read when asked for."""

    def __init__(self, text: str, file: str, used_files: Mapping[Any, str]) -> None:
        """used_files: the imported files, as lark's loader notes them."""
        self._main = _read(text, file)
        self._used_files = [*used_files]
        self._imported: list[_File] | None = None

    @property
    def rules(self) -> Iterator[str]:
        """Names of the rules that the grammar itself defines, in its order."""
        return (name for name, one in self._main.definitions.items() if one.is_rule)

    def of_name(self, name: str) -> Location | None:
        """Where a rule or terminal is defined or, failing that, imported."""
        found = self._definition(name)
        return self._main.imports.get(name) if found is None else found.location

    def of_import(self, module: str) -> Location | None:
        """Where something is imported from a module."""
        return self._main.imports.get(module)

    def of_construct(self, name: str, pattern: Pattern | None, marker: str) -> Location:
        """Where a construct is written in a terminal's pattern, or else the terminal.

        marker: the construct's text, for example '(?!'. A terminal without a name of its own is
        found by its pattern.
        """
        definition = self._definition(name)
        if definition is None and pattern is not None:
            for literal, file in self._literals():
                if _is_pattern(literal, pattern):
                    return _within(literal, file, marker)
        if definition is None:
            return self._main.imports.get(name) or Location(self._main.name, 1, 1)
        for literal in self._literals_of(definition, set()):
            if marker and marker in literal:
                return _within(literal, definition.location.file, marker)
        return definition.location

    def of_broken_regex(self) -> Location | None:
        """Where the first literal stands that is no regex of Python's."""
        found = (one for one in self._literals() if not _compiles(one[0]))
        return next((_within(literal, file, "") for literal, file in found), None)

    def of_rule(self, name: str) -> Location:
        """Where a rule is defined; one that lark made from an operator is placed by its source."""
        base = name.removeprefix("__")
        while base:
            found = self._definition(base)
            if found is not None:
                return found.location
            base = base.rpartition("_")[0]
        return Location(self._main.name, 1, 1)

    def _files(self) -> list[_File]:
        if self._imported is None:
            self._imported = [_read(*_content(file)) for file in self._used_files]
        return [self._main, *self._imported]

    def _definition(self, name: str) -> _Definition | None:
        found = self._main.definitions.get(name)
        if found is not None:
            return found
        if name.startswith("__IGNORE_"):
            idx = int(name.rpartition("_")[2])
            ignored = self._main.ignored
            return ignored[idx] if idx < len(ignored) else None
        # An imported name is prefixed by its module, its leading underscore before that.
        plain = name.rpartition("__")[2]
        for file in self._files()[1:]:
            for candidate in (plain, f"_{plain}"):
                if candidate in file.definitions:
                    return file.definitions[candidate]
        return None

    def _literals(self) -> Iterator[tuple[Token, str]]:
        for file in self._files():
            for definition in (*file.definitions.values(), *file.ignored):
                for literal in definition.literals:
                    yield literal, file.name

    def _literals_of(self, definition: _Definition, seen: set[str]) -> Iterator[Token]:
        """The literals of a definition and of the terminals it is made of."""
        yield from definition.literals
        for name in definition.uses:
            inner = self._definition(name)
            if inner is not None and not inner.is_rule and name not in seen:
                seen.add(name)
                yield from self._literals_of(inner, seen)


def _read(text: str, file: str) -> _File:
    from lark.exceptions import LarkError
    from lark.load_grammar import (
        _parse_grammar,  # pyright: ignore[reportPrivateUsage]  # there is no public one
    )

    read = _File(file)
    try:
        tree = _parse_grammar(text, file)  # type: ignore[no-untyped-call]  # lark leaves it bare
    except LarkError:
        return read  # whoever loads the grammar says so
    for statement in tree.children:
        kind = statement.data
        if kind in ("override", "extend"):
            statement = statement.children[0]
            kind = statement.data
        if kind in ("rule", "term"):
            name = statement.children[1 if kind == "rule" else 0]
            definition = _defined(statement, Location(file, name.line, name.column), kind == "rule")
            read.definitions[str(name)] = definition
        elif kind == "ignore":
            read.ignored.append(_ignored(statement, file))
        elif kind == "import":
            _note_names(statement, file, read.imports)
        elif kind == "declare":
            # Symbols carry no places; the statement does not, either.
            _note_declared(statement, text, file, read.imports)
    return read


def _note_names(statement: Tree[Any], file: str, places: dict[str, Location]) -> None:
    for token in statement.scan_values(lambda value: hasattr(value, "line")):
        places[str(token)] = Location(file, token.line, token.column)


def _note_declared(statement: Tree[Any], text: str, file: str, places: dict[str, Location]) -> None:
    for symbol in statement.scan_values(lambda _: True):
        found = re.search(rf"^%declare\b.*?\b({re.escape(symbol.name)})\b", text, re.MULTILINE)
        if found is not None:
            line = text.count("\n", 0, found.start(1)) + 1
            column = found.start(1) - (text.rfind("\n", 0, found.start(1)) + 1) + 1
            places[str(symbol.name)] = Location(file, line, column)


def _ignored(statement: Tree[Any], file: str) -> _Definition:
    definition = _defined(statement, Location(file, 1, 1), False)
    if definition.literals:
        first = definition.literals[0]
        definition.location = Location(file, first.line or 1, first.column or 1)
    return definition


def _defined(statement: Tree[Any], location: Location, is_rule: bool) -> _Definition:
    definition = _Definition(location, is_rule)
    for value in _leaves(statement):
        if getattr(value, "type", None) in ("STRING", "REGEXP"):
            definition.literals.append(value)
        elif getattr(value, "is_term", False):
            definition.uses.append(value.name)
    return definition


def _leaves(statement: Tree[Any]) -> Iterator[Any]:
    """What a statement is made of, in order; iterative, because lark's own walk recurses."""
    pending = [*reversed(statement.children)]
    while pending:
        value = pending.pop()
        if hasattr(value, "children"):
            pending += reversed(value.children)
        else:
            yield value


def _content(file: Any) -> tuple[str, str]:
    """An imported file's text and name; a grammar of a package is named package/path."""
    if isinstance(file, tuple):
        package, path = file
        data = pkgutil.get_data(package, path)
        return ("" if data is None else data.decode()), f"{package}/{path}"
    return Path(file).read_text("utf-8-sig"), str(file)


def _as_pattern(literal: Token) -> Pattern:
    from lark.load_grammar import (
        _literal_to_pattern,  # pyright: ignore[reportPrivateUsage]  # there is no public one
    )

    pattern: Pattern = _literal_to_pattern(literal)  # type: ignore[no-untyped-call]  # lark leaves it bare
    return pattern


def _is_pattern(literal: Token, pattern: Pattern) -> bool:
    written = _as_pattern(literal)
    return bool(written.value == pattern.value and written.flags == pattern.flags)


def _compiles(literal: Token) -> bool:
    try:
        re.compile(_as_pattern(literal).to_regexp())
    except re.error:
        return False
    return True


def _within(literal: Token, file: str, marker: str) -> Location:
    assert literal.line is not None and literal.column is not None
    before = literal[: literal.find(marker)] if marker and marker in literal else ""
    line = literal.line + before.count("\n")
    column = len(before.rpartition("\n")[2]) + (literal.column if "\n" not in before else 1)
    return Location(file, line, column)
