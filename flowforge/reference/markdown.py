"""Parts of pages in Markdown."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BAR = "&#124;"
_CODE = re.compile("`([^`]*)`")
MADE = "Made from the code by `python -m flowforge.reference docs`; do not edit."
"""What a page says of itself."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell is one line of Markdown, in which `|` may stand."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def code(text: str) -> str:
    """A text as code; nothing for nothing."""
    return f"`{text}`" if text else ""


def paragraphs(text: str) -> str:
    """A docstring as Markdown: its lines are those of a terminal, names in quotes are code."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    return _CODE.sub(_code_in_a_cell, " ".join(text.split())).replace("|", _BAR)


def _code_in_a_cell(found: re.Match[str]) -> str:
    """Between backticks a bar ends the cell for some readers; what hides it shows for others."""
    return f"<code>{escape(found[1], quote=False)}</code>" if "|" in found[1] else found[0]
