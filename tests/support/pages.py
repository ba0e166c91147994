"""The blocks of a page of Markdown, and walking a page as its reader does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_TITLE = re.compile(r'title="([^"]+)"')
_ANY = "…"
"""In output that is shown: anything, also on several lines."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. line: of its first line in the page. title: of the file that it is, or ""."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """A page, from the root of the repository."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "fence":
            assert token.map is not None
            language, _, rest = token.info.partition(" ")
            title = _TITLE.search(rest)
            name = "" if title is None else title[1]
            found.append(Block(page, token.map[0] + 2, language, name, token.content))
    return found


def walk(page: Path, folder: Path) -> None:
    """Do what a page says, in an empty folder: write its files, run its commands and its code.

    A block with a title is a file. `sh` is run; `console` has commands behind `$` and what they
    print, where "…" stands for anything; `python` without a title is run as a script. A command
    fails only where the page shows an error of it.
    """
    for block in blocks_of(page):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, "utf-8")
        elif block.language == "sh":
            _run(block, block.text, folder, may_fail=False)
        elif block.language == "console":
            for command, shown in _commands(block.text):
                said = _run(block, command, folder, may_fail="error[" in shown)
                assert _agrees(shown, said), (
                    f"{block.place}: {command}\nshown:\n{shown}\nis:\n{said}"
                )
        elif block.language == "python":
            (folder / "block.py").write_text(block.text, "utf-8")
            _run(block, f"{sys.executable} block.py", folder, may_fail=False)


def _run(block: Block, command: str, folder: Path, *, may_fail: bool) -> str:
    # As in an environment that is activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert may_fail or done.returncode == 0, f"{block.place}: {command}\n{done.stdout}"
    return done.stdout


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        num = 1
        while lines[num - 1].endswith("\\"):
            num += 1
        yield "\n".join(lines[:num]), "\n".join(lines[num:])


def _agrees(shown: str, said: str) -> bool:
    pattern = ".*".join(map(re.escape, _stripped(shown).split(_ANY)))
    return re.fullmatch(pattern, _stripped(said), re.DOTALL) is not None


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
