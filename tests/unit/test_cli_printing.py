"""What is printed of texts that models wrote."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

from flowforge.cli.failures import failure_lines, print_json_line
from flowforge.cli.printing import print_text
from flowforge.errors import FlowForgeError, Location, WorkflowError
from flowforge.runtime.state import Failure

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


def cut_off(path: str, num_tokens: int = 8) -> Failure:
    place = Location("w.yaml", 9, 7)
    error = WorkflowError(
        "WF501", f"cut after {num_tokens} tokens", location=place, help="raise max_tokens"
    )
    return Failure(path, error)


def test_branches_that_failed_alike_are_told_in_one_line_with_one_help() -> None:
    lines = [*failure_lines([cut_off("all[0]/one"), cut_off("all[1]/one")])]

    assert lines == [
        "error[WF501]: all[0]/one, all[1]/one: cut after 8 tokens",
        "  --> w.yaml:9:7",
        "help: raise max_tokens",
    ]


def test_failures_of_a_kind_with_words_of_their_own_share_place_and_help() -> None:
    other = Failure("b", FlowForgeError("EN1", "no model"))
    lines = [*failure_lines([cut_off("all[0]/one"), other, cut_off("all[1]/one", 9)])]

    assert lines == [
        "error[WF501]: all[0]/one: cut after 8 tokens",
        "error[WF501]: all[1]/one: cut after 9 tokens",
        "  --> w.yaml:9:7",
        "help: raise max_tokens",
        "error[EN1]: b: no model",
    ]


def test_of_many_branches_that_failed_alike_the_first_are_named() -> None:
    first, *_ = failure_lines(cut_off(f"b[{idx}]") for idx in range(1000))

    assert first.endswith("b[10], b[11] and 988 more: cut after 8 tokens")
