"""The blocks of a page of Markdown, and walking a page as its reader does.

What is to be done with a block says a comment before it, which readers do not see:

- `<!-- not run: REASON -->`: it cannot be run here.
- `<!-- part of FILE -->`: these lines stand in that file.
- `<!-- goes on: TEXT -->`: a command of another terminal, which says TEXT when it is ready and goes
  on to the end of the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("**/*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *DOCS]
RUN_BY_TESTS = {
    "docs/answer-forms.md": "tests/contract/test_answer_forms_page.py",
    "docs/engine.md": "tests/e2e/test_engine_page.py",
    "docs/python-api.md": "tests/contract/test_python_api_page.py",
}
"""Pages whose code needs more than to be walked."""
_TITLE = re.compile(r'title="([^"]+)"')
_MARK = re.compile(r"<!-- (not run|part of|goes on):? (.+?) -->", re.DOTALL)
_ANY = "…"
"""In output that is shown: anything, also on several lines."""
_PATIENCE_S = 100.0
"""For one command; as long as a busy machine may take."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. line: of its first line in the page. title: of the file that it is, or "".

    mark, said: of the comment before it, both "" where there is none.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str
    mark: str = ""
    said: str = ""

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """A page, from the root of the repository."""
    return str(page.relative_to(ROOT))


def is_made(page: Path) -> bool:
    """Whether a page is made from the code, and held to it where that is tested."""
    return "; do not edit." in page.read_text("utf-8")


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    mark, said = "", ""
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "fence":
            assert token.map is not None
            language, _, rest = token.info.partition(" ")
            title = _TITLE.search(rest)
            name = "" if title is None else title[1]
            line = token.map[0] + 2
            found.append(Block(page, line, language, name, token.content, mark, said))
        comment = _MARK.search(token.content) if token.type == "html_block" else None
        mark, said = ("", "") if comment is None else (comment[1], " ".join(comment[2].split()))
    return found


def walk(page: Path, folder: Path) -> None:
    """Do what a page says, in an empty folder: write its files, run its commands and its code.

    A block with a title is a file. `sh` is run; `console` has commands behind `$` and what they
    print, where "…" stands for anything; `python` without a title is run as a script. A command
    fails only where the page shows an error of it. Other blocks must say what they are.

    A server gets a port that is free, and the page's port stands for that from there on.
    """
    with ExitStack() as servers:
        ports: dict[str, str] = {}
        for block in blocks_of(page):
            if block.mark != "not run":
                _do(_moved(block, ports), folder, servers, ports)


def _do(block: Block, folder: Path, servers: ExitStack, ports: dict[str, str]) -> None:
    if block.mark == "part of":
        whole = _code(folder.joinpath(block.said).read_text("utf-8"))
        assert _code(block.text) in whole, f"{block.place}: it is not in {block.said}\n{whole}"
    elif block.mark == "goes on":
        _begin(block, folder, servers, ports)
    elif block.title:
        file = folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, "utf-8")
    elif block.language == "sh":
        _run(block, block.text, folder, may_fail=False)
    elif block.language == "console":
        for command, shown in _commands(block.text):
            said = _run(block, command, folder, may_fail="error[" in shown)
            assert _agrees(shown, said), f"{block.place}: {command}\nshown:\n{shown}\nis:\n{said}"
    elif block.language == "python":
        (folder / "block.py").write_text(block.text, "utf-8")
        _run(block, f"{sys.executable} block.py", folder, may_fail=False)
    else:
        assert block.language == "mermaid", f"{block.place}: neither run nor marked"


def _code(text: str) -> str:
    """Without comments and empty lines."""
    lines = (re.sub(r"(^|\s+)#.*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(filter(None, lines))


def _moved(block: Block, ports: dict[str, str]) -> Block:
    text = block.text
    for shown, real in ports.items():
        text = re.sub(rf"(127\.0\.0\.1|localhost):{shown}\b", rf"\1:{real}", text)
    return replace(block, text=text)


def _begin(block: Block, folder: Path, servers: ExitStack, ports: dict[str, str]) -> None:
    """Start a server, and wait until it says that it is ready."""
    shown = re.search(r"--port (\d+)", block.text)
    command = block.text if shown is None else block.text.replace(shown[0], "--port 0")
    log = folder / f"line-{block.line}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"exec {command}"],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    servers.callback(_end, process)
    end_s = time.monotonic() + _PATIENCE_S
    while block.said not in (told := log.read_text("utf-8")):
        assert process.poll() is None, f"{block.place}: {command}\n{told}"
        assert time.monotonic() < end_s, f"{block.place}: {command}\n{told}"
        time.sleep(0.05)
    if shown is not None:
        address = re.search(r"http://127\.0\.0\.1:(\d+)", told)
        assert address is not None, f"{block.place}: {told}"
        ports[shown[1]] = address[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def _run(block: Block, command: str, folder: Path, *, may_fail: bool) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert may_fail or done.returncode == 0, f"{block.place}: {command}\n{done.stdout}"
    return done.stdout


def _environment() -> dict[str, str]:
    """As where the environment of the tests is activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}


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
