"""Environment variables are read by what `flowforge/environment.py` declares, and by no word."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge import environment
from flowforge.environment import GROUPS, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDERS = ("flowforge", "engine", "grammars", "tui")


def names_in_place(tree: ast.AST) -> Iterator[str]:
    """Names of variables that stand as a text where the environment is read."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ast.Attribute(attr="environ"), ast.Constant(str(name))):
                yield name
            case ast.Call(
                ast.Attribute(ast.Attribute(attr="environ"), _), [ast.Constant(name), *_]
            ):
                yield str(name)
            case ast.Call(ast.Attribute(attr="getenv"), [ast.Constant(name), *_]):
                yield str(name)
            case ast.Compare(ast.Constant(str(name)), _, [ast.Attribute(attr="environ")]):
                yield name
            case ast.keyword("envvar", ast.Constant(str(name))):
                yield name
            case _:
                pass


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['A']",
        "os.environ.get('A')",
        "os.environ.get('A', 'b')",
        "os.environ.pop('A')",
        "os.getenv('A')",
        "'A' in os.environ",
        "'A' not in os.environ",
        "click.option('--a', envvar='A')",
    ],
)
def test_a_name_in_place_is_found(text: str) -> None:
    assert ["A"] == [*names_in_place(ast.parse(text))]


def test_no_module_names_a_variable_where_it_reads_it() -> None:
    modules = [
        file
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in file.parents)
    ]

    found = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in modules
        for name in names_in_place(ast.parse(module.read_text(encoding="utf-8")))
    ]

    assert len(modules) > 300
    assert [] == found


def test_every_declared_variable_is_shown_once() -> None:
    declared = {one.name for one in vars(environment).values() if isinstance(one, Variable)}
    shown = [one.name for group in GROUPS.values() for one in group]

    assert declared <= set(shown)
    assert len(shown) == len(set(shown))


def test_a_variable_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Variable("FLOWFORGE_TEST", "For this test.")
    assert (False, "default") == (one.is_set, one.text("default"))

    monkeypatch.setenv("FLOWFORGE_TEST", "")

    assert (True, "") == (one.is_set, one.text("default"))
