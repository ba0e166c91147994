"""`flowforge grammar`, as it prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flowforge.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def grammar(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["grammar", *arguments])


def test_check_says_how_exact_a_grammar_is() -> None:
    result = grammar("check", "flowforge/json")

    assert 0 == result.exit_code
    assert (
        "flowforge/json: exact, 7 rules, 11 terminals\n"
        "  look-around or the order of trying worked in: STRING\n"
    ) == result.stdout


def test_check_shows_what_cannot_be_masked(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text("start: A B\nA: /a(?!x)/\nB: /(x)\\1/\n")

    result = grammar("check", str(file))

    assert 3 == result.exit_code
    assert "error[WF432]: terminal 'A' cannot be masked, at '(?!'" not in result.stdout
    assert (
        "error[WF432]: terminal 'B' cannot be masked, at '\\\\1': a back-reference needs to "
        f"remember text\n  --> {file}:3:8\n"
    ) in result.stdout
    assert result.stdout.endswith("g.lark: cannot be masked\n")


def test_check_approximate_warns(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text('start: A B\nA: /a(?!x)/\nB: "x"\n')

    refused = grammar("check", str(file))
    taken = grammar("check", "--approximate", str(file), "--json")

    assert 3 == refused.exit_code
    assert 0 == taken.exit_code
    report = json.loads(taken.stdout)
    assert "approximate" == report["exactness"]
    assert [("warning", 2, 6)] == [
        (one["severity"], one["line"], one["column"]) for one in report["problems"]
    ]


def test_test_shows_where_a_text_stops() -> None:
    result = grammar("test", "flowforge/iso_datetime", "2023-02-29")

    assert 1 == result.exit_code
    assert (
        "the text stops being in the grammar after 9 characters\n"
        "1 | 2023-02-29\n"
        "  |          ^ here could follow: '0' to '8'\n"
    ) == result.stdout


def test_test_takes_a_text_of_the_grammar() -> None:
    result = grammar("test", "flowforge/csv_row", 'a,"b ""c"""')

    assert (0, "the text is in the grammar\n") == (result.exit_code, result.stdout)


def test_sample_prints_the_same_sentences_for_a_seed() -> None:
    first = grammar("sample", "flowforge/arithmetic", "-n", "3", "--seed", "4")
    again = grammar("sample", "flowforge/arithmetic", "-n", "3", "--seed", "4")

    assert 0 == first.exit_code
    assert 3 == len(first.stdout.splitlines())
    assert first.stdout == again.stdout


def test_list_names_the_shipped_grammars() -> None:
    result = grammar("list", "--json")

    names = [json.loads(line)["name"] for line in result.stdout.splitlines()]
    assert "flowforge/sql_select" in names
    assert 10 == len(names)


def test_an_unknown_shipped_grammar_is_an_error() -> None:
    result = grammar("check", "flowforge/nothing")

    assert 2 == result.exit_code
    assert "WF430" in result.stderr


def test_check_shows_what_lark_refuses(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text("start: x\n")

    result = grammar("check", str(file))

    assert 3 == result.exit_code
    assert (
        "error[WF431]: lark refuses the grammar: rule 'x' used but not defined (in rule start)\n"
        f"  --> {file}:1:1\n{file}: cannot be masked\n"
    ) == result.stdout


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "1:1", "it is nested too deep"),
        ("start: A\nA: /" + "(" * 3000 + "a" + ")" * 3000 + "/", "1:1", "it is nested too deep"),
        ("start: A\nA: /[a]{0,9}/\n", "2:1", "terminal 'A' may match the empty text"),
        ('start: "a"\n  | B\nB: "b" /(/\n', "3:8", "no regex of Python's: missing )"),
        ('start: "é" /\\p{L}+/\n', "1:12", "no regex of Python's: bad escape \\p"),
        ("", "1:1", "using an undefined rule: 'start'"),
    ],
)
def test_check_says_in_plain_words_what_is_refused(
    tmp_path: Path, text: str, place: str, words: str
) -> None:
    file = tmp_path / "g.lark"
    file.write_text(text, "utf-8")

    result = grammar("check", str(file))

    assert 3 == result.exit_code
    assert f"error[WF431]: lark refuses the grammar: {words}" in result.stdout
    assert f"--> {file}:{place}\n" in result.stdout


def test_a_byte_order_mark_before_a_grammar_is_none_of_it(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_bytes(b'\xef\xbb\xbfstart: "a"\r\n')

    assert 0 == grammar("check", str(file)).exit_code


def test_a_grammar_that_is_no_utf_8_says_so(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_bytes(b"\xff\xfe")

    result = grammar("check", str(file))

    assert 2 == result.exit_code
    assert "help: save it as UTF-8" in result.stderr


def test_a_text_that_is_no_utf_8_is_refused() -> None:
    result = CliRunner().invoke(app, ["grammar", "test", "flowforge/json"], input=b"\xff\xfe")

    assert 2 == result.exit_code
    assert "error[WF430]: the text on stdin is not UTF-8" in result.stderr


def test_test_shows_a_long_line_only_around_its_stop() -> None:
    result = grammar("test", "flowforge/json", "[" + "1," * 5000 + "x" + ",2" * 5000)

    _, line, caret = result.stdout.splitlines()
    assert len(line) < 100
    assert "x" == line[caret.index("^")]
    assert line.startswith("1 | …") and line.endswith("…")
