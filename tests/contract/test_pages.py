"""Every page: its links lead somewhere, its commands are there, its files can be read."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import click
import pytest
from pages import ROOT, Block, blocks_of, name_of
from ruamel.yaml import YAML

import flowforge as ff
from flowforge.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOCS = sorted((ROOT / "docs").glob("**/*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *DOCS]
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


def test_the_python_of_the_readme_runs() -> None:
    (block,) = (one for one in blocks_of(ROOT / "README.md") if one.language == "python")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block.text, block.place, "exec"), names)
    backend = ff.testing.script({"gen": ["range", "price"], "explain[*]/gen": "it matters"})

    told = ff.run_sync(names["advice"], backend=backend, topic="bicycles")

    assert ["it matters", "it matters"] == told


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
