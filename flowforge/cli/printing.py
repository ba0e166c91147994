"""Texts on stdout and stderr: as they are for files and programs, harmless for terminals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO


def print_text(text: str) -> None:
    """Write a text that models, tools or people wrote.

    On a terminal its control codes show as marks, because a terminal would obey them.
    """
    _write(sys.stdout, text)


def print_note(line: str) -> None:
    """The same for a line on stderr: what is told beside a result quotes such texts, too."""
    _write(sys.stderr, f"{line}\n")


def _write(stream: TextIO, text: str) -> None:
    if stream.isatty():
        from flowforge.view.printable import printable

        text = printable(text)
    stream.write(text)
    stream.flush()
