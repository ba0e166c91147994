"""Texts on stdout: as they are for files and programs, harmless for terminals."""

from __future__ import annotations

import sys


def print_text(text: str) -> None:
    """Write a text that models, tools or people wrote.

    On a terminal its control codes show as marks, because a terminal would obey them.
    """
    if sys.stdout.isatty():
        from flowforge.view.printable import printable

        text = printable(text)
    sys.stdout.write(text)
    sys.stdout.flush()
