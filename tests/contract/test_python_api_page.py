"""docs/python-api.md: its code runs, and it has an example of every public name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import flowforge as ff

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python-api.md"


def blocks() -> list[tuple[int, str]]:
    """Each block of Python with the number of its first line."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def test_the_code_of_the_page_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # Put back with whatever the page sets, which other tests must not find.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    names: dict[str, object] = {"__name__": "python_api_page"}

    for line, code in blocks():
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)

    assert len(blocks()) > 10


@pytest.mark.parametrize("name", ff.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    code = "\n".join(code for _, code in blocks())

    assert re.search(rf"\bff\.{name}\b", code)


def test_the_codes_of_the_page_are_those_of_the_code() -> None:
    sources = (ROOT / "flowforge" / "flows").glob("*.py")
    raised = {
        code
        for source in sources
        for code in re.findall(r'"(WF6\d\d)"', source.read_text(encoding="utf-8"))
    }

    listed = re.findall(r"^\| (WF6\d\d) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(raised) == listed
