"""What is printed of texts that models wrote."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

from flowforge.cli.failures import print_json_line
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


def test_json_holds_no_code_that_a_terminal_obeys_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"text": "a\x1b[2J\x7f\x9b2J\x85\u202egnp\u2066漢 e\u0301 \U0001f469\u200d\U0001f680"}
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)

    print_json_line(told)

    line = stdout.getvalue()
    assert told == json.loads(line)
    assert not set(line[:-1]) & {chr(code) for code in (*range(32), *range(0x7F, 0xA0), 0x202E)}
    assert "漢" in line
