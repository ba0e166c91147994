"""Every page: its links lead somewhere, its commands are there, its blocks are run or say why."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from typing import TYPE_CHECKING

import click
import pytest
from pages import DOCS, PAGES, ROOT, RUN_BY_TESTS, Block, blocks_of, is_made, name_of
from ruamel.yaml import YAML

from flowforge.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOR_ENGINEERS = [ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]
FOLDERS = ("flowforge", "engine", "grammars", "tui", "tests", "benchmarks", "docs", "workflows")
ENVIRONMENT = "it makes the environment that the tests run in"
NOT_RUN = {
    "README.md": [ENVIRONMENT, ENVIRONMENT],
    "CONTRIBUTING.md": [ENVIRONMENT, "these are the tests"],
    "ARCHITECTURE.md": ["a picture; import-linter holds it"],
    "docs/bench-serve.md": ["minutes of load for a server"],
    "docs/bench-workflows.md": ["minutes of two cores"],
    "docs/serving.md": [
        "each goes on until it is ended; the tutorial starts one and asks it",
        "it needs the server of above; the tutorial does it",
    ],
    "docs/start.md": [ENVIRONMENT, "the figures of one machine; the run above prints its own"],
    "docs/traces.md": [
        "it changes the environment that the tests run in, and wants a collector",
    ],
    "docs/tutorials/serving.md": [ENVIRONMENT],
    "docs/tutorials/testing.md": [ENVIRONMENT],
}
PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "yaml": YAML(typ="safe", pure=True).load,
    "toml": tomllib.loads,
}


def commands_of(block: Block) -> Iterator[list[str]]:
    """What a block says after `flowforge`, word by word."""
    text = re.sub(r"\\\n", " ", block.text)
    for said in re.findall(r"(?:^|[\s(/])flowforge ([^|>&;)#\n]*)", text, re.MULTILINE):
        yield re.findall(r"\"[^\"]*\"|'[^']*'|\S+", said)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    files = [link for link in links if "://" not in link]

    missing = [link for link in files if not (page.parent / link).exists()]
    # The site holds docs/ and nothing else.
    outside = [link for link in files if page in DOCS and not _is_in_docs(page.parent / link)]

    assert not missing
    assert not outside


def _is_in_docs(path: Path) -> bool:
    return path.resolve().is_relative_to(ROOT / "docs")


def test_the_site_has_every_page_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]

    listed = [name for part in site["nav"] for pages in part.values() for name in pages]

    assert sorted(name_of(page).removeprefix("docs/") for page in DOCS) == sorted(listed)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_are_there(page: Path) -> None:
    for block in blocks_of(page):
        if block.language in {"sh", "console", "bash"}:
            for words in commands_of(block):
                _require(words, block)


def _require(words: list[str], block: Block) -> None:
    command: click.Command = app
    context = click.Context(app)
    said = iter(words)
    for word in said:
        if word.startswith("-"):
            options = {
                name for option in command.params for name in [*option.opts, *option.secondary_opts]
            }
            option = word.partition("=")[0]
            assert option in {*options, "--help", "-h"}, f"{block.place}: no {word} in {words}"
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            assert found is not None, f"{block.place}: no command {word!r} in {words}"
            command = found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    if is_made(page) or name_of(page) in RUN_BY_TESTS:
        return
    for block in blocks_of(page):
        is_run = block.title or block.language in {"sh", "console", "python"}
        is_drawn = block.language == "mermaid"
        assert block.mark or is_run or is_drawn, f"{block.place}: neither run nor marked"


def test_blocks_that_are_not_run_are_these() -> None:
    """Each with its reason. What can be run here does not belong among them."""
    marked = [block for page in PAGES for block in blocks_of(page) if block.mark == "not run"]

    found: dict[str, list[str]] = {}
    for block in marked:
        found.setdefault(name_of(block.page), []).append(block.said)

    assert NOT_RUN == found


@pytest.mark.parametrize("page", sorted(RUN_BY_TESTS))
def test_pages_with_tests_of_their_own_have_them(page: str) -> None:
    assert page.removeprefix("docs/") in (ROOT / RUN_BY_TESTS[page]).read_text("utf-8")


@pytest.mark.parametrize("page", FOR_ENGINEERS, ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """With their folders, or by their names alone."""
    text = page.read_text("utf-8")
    paths = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", text)
    names = re.findall(r"`(\w+\.(?:py|c|lark))`", text)
    known = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}

    assert not [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    assert not {*names} - known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_data_can_be_read(page: Path) -> None:
    for block in blocks_of(page):
        if block.language in PARSERS:
            try:
                PARSERS[block.language](block.text)
            except ValueError as error:
                pytest.fail(f"{block.place}: {error}")
        elif block.language == "python":
            # Parts of a flow may await.
            compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
