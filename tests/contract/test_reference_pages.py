"""Pages of docs/ that are made from the code: they are what it says, and leave nothing out."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
import pytest

import flowforge as ff
from flowforge.cli.app import app
from flowforge.cli.exit_codes import MEANINGS, ExitCode
from flowforge.engine.model_store import store_root
from flowforge.environment import CACHE_HOME, CONFIG_HOME, HOME, JOURNAL, STATE_HOME
from flowforge.journal.location import default_journal
from flowforge.reference.cli_page import argument_meaning, commands_of, told_arguments
from flowforge.reference.docstrings import split_docstring, told_of
from flowforge.reference.events_page import COMMON
from flowforge.reference.markdown import MADE, code, table
from flowforge.reference.pages import pages
from flowforge.reference.python_page import groups, members_of
from flowforge.runtime.events import Fact
from flowforge.serving.metrics import COUNTERS, GAUGES, LATENCIES
from flowforge.serving.openapi import ERROR_CODES, openapi_document

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
COMMANDS = dict(commands_of(app))


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_what_the_code_says(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")

    # If not: python -m flowforge.reference docs
    assert pages()[name] == page
    assert MADE in page


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_argument_and_option_says_what_it_is(path: str) -> None:
    command = COMMANDS[path]

    assert command.help
    for one in command.params:
        if isinstance(one, click.Argument):
            assert argument_meaning(path, one.name or "")
        elif isinstance(one, click.Option) and not one.hidden:
            assert one.help, f"{path} {one.opts}"


@pytest.mark.parametrize("begun", told_arguments())
def test_what_is_told_of_arguments_is_of_commands_that_are_there(begun: str) -> None:
    within = [command for path, command in COMMANDS.items() if f"{path} ".startswith(f"{begun} ")]
    names = {one.name for command in within for one in command.params}

    assert told_arguments()[begun] <= names


def test_folders_are_where_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (HOME, JOURNAL, CACHE_HOME, STATE_HOME, CONFIG_HOME):
        monkeypatch.delenv(variable.name, raising=False)
    page = pages()["configuration.md"]

    for path in (store_root(), default_journal()):
        assert f"`~/{path.relative_to(Path.home())}" in page


def test_every_exit_code_has_a_meaning() -> None:
    assert [*ExitCode] == [*MEANINGS]


@pytest.mark.parametrize("fact", get_args(Fact), ids=lambda fact: fact.__name__)
def test_every_event_says_when_it_is_told_and_what_its_fields_are(fact: type) -> None:
    told = told_of(fact)

    assert told.summary
    assert [] == [
        field.name
        for field in fields(fact)
        if field.name not in told.fields and field.name not in COMMON
    ]


def test_metrics_have_names_of_their_own_and_say_what_they_are() -> None:
    helps = {one.name: one.help for one in (*GAUGES, *COUNTERS)}
    helps |= {one.name: one.help for one in LATENCIES}

    assert len(helps) == len(GAUGES) + len(COUNTERS) + len(LATENCIES)
    assert [] == [name for name, what in helps.items() if not what.endswith(".")]


def test_every_code_that_the_server_tells_is_on_the_page() -> None:
    told = {
        code
        for module in (ROOT / "flowforge" / "serving").glob("*.py")
        for code in re.findall(r'code(?:: str)? ?= ?"([a-z_]+)"', module.read_text("utf-8"))
    }
    named = {"model_not_found", "unknown_url", "context_length_exceeded"}

    assert told | named == {code for code, _, _ in ERROR_CODES}


def test_every_route_and_field_of_a_request_says_what_it_is() -> None:
    page, document = pages()["http.md"], openapi_document()

    for path, methods in document["paths"].items():
        assert [] == [one for one in methods if f"## {one.upper()} {path}\n" not in page]
    assert "any value" not in page
    assert [] == [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        if name != "Error"
        for field, told in schema["properties"].items()
        if not told.get("description")
    ]


def test_every_public_name_is_on_the_page_with_what_it_is_for() -> None:
    listed = [name for _, names in groups() for name in names]

    assert ff.__all__ == listed
    assert [] == list(undocumented())


def undocumented() -> Iterator[str]:
    for name in ff.__all__:
        found = getattr(ff, name)
        if not found.__doc__:
            yield name
        if isinstance(found, type):
            for member, value in members_of(found):
                if not value.__doc__:
                    yield f"{name}.{member}"


def test_a_docstring_is_parted_where_a_sentence_begins_with_a_name() -> None:
    text = """What it is.

    More: of it. one: the first, as
    told. two, three: both
    of them; four:
    the last. A wait: is no field.
    """

    told = split_docstring(text, ["one", "two", "three", "four"])

    assert "What it is.\n\n    More: of it." == told.summary
    assert {
        "one": "The first, as told.",
        "two": "Both of them",
        "three": "Both of them",
        "four": "The last. A wait: is no field.",
    } == told.fields


def test_a_bar_does_not_end_a_cell() -> None:
    cells = "x&#124;y | `a` &#124; <code>&lt;b&#124;c&gt;</code> | `d`"

    assert f"| a | b | c |\n|---|---|---|\n| {cells} |" == table(
        ["a", "b", "c"], [["x|y", "`a` | `<b|c>`", code("d")]]
    )
