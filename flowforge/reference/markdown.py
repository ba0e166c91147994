"""Parts of pages in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    return " ".join(text.split()).replace("|", "\\|")
