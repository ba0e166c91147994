"""What is printed of texts that models wrote."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from flowforge.cli.printing import print_text

if TYPE_CHECKING:
    import pytest

HOSTILE = "a\x1b]0;title\x07b\x1b[2J\tc\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_code_that_it_would_obey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)

    print_text(HOSTILE)

    assert not set(stdout.getvalue()) & set("\x1b\x07")
    assert stdout.getvalue().endswith("c\n")


def test_a_file_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)

    print_text(HOSTILE)

    assert HOSTILE == stdout.getvalue()
