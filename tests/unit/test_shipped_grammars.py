"""The shipped grammars: what they accept is what other readers of the format accept."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import shlex
import sqlite3
from datetime import datetime, time
from functools import cache
from random import Random
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import matches
from flowforge.grammars.lark.grammar import LarkGrammar, load_lark
from flowforge.grammars.lark.sampling import Sampler
from flowforge.grammars.lark.shipped import shipped_names, shipped_source

if TYPE_CHECKING:
    from collections.abc import Callable

ACCEPTED = {
    "json": ['{"a":[1,-2.5e3,true,null],"b":{"c":"\\u00e9"}}', "[]", '"x"', "0"],
    "arithmetic": ["1", "2*(x+1)^3", "-a / -2", "1 + 2*3"],
    "sql_select": [
        "SELECT * FROM orders",
        (
            "SELECT DISTINCT name, COUNT(*) AS num FROM orders AS o JOIN items ON o.id = items.id "
            "WHERE price >= 3.5 AND name LIKE 'a''b%' OR NOT (x IS NULL) GROUP BY name "
            "HAVING COUNT(*) > 2 ORDER BY num DESC LIMIT 10 OFFSET 5"
        ),
        "SELECT a FROM t WHERE b IN (1, 2) AND c BETWEEN 1 AND 2",
        "SELECT selected FROM fromage",
    ],
    "python_call": ['search("shoes", limit=10, tags=["new"])', "a.b()", "f((1,), {\"k\": None})"],
    "shell_command": ["ls -l --sort=size src/a.py 'my file'", "./run.sh", "grep -n 'a|b' x"],
    "iso_datetime": [
        "2024-02-29", "2000-02-29", "23:59:59.5Z", "2024-12-31T08:30:00+01:00", "0001-01-01",
    ],
    "csv_row": ["a,b,c", 'plain,"with, comma","say ""hi"""', "", ",", '"x\ny"'],
    "markdown_table": ["| name | price |\n| --- | ---: |\n| tea | 3 |\n"],
    "xml_element": ['<a b="1 &amp; 2"><c/>text &lt; 3</a>', "<x/>"],
    "unified_diff": ["--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@ def f():\n keep\n-old\n+new\n"],
}  # fmt: skip
REJECTED = {
    "json": ["{'a': 1}", "[1,]", "01", '{"a":1', "nul", '"\t"'],
    "arithmetic": ["1 +", "(1", "1  + 2", "2x", ""],
    "sql_select": [
        "select * from t", "DROP TABLE t", "SELECT * FROM t; DELETE FROM t", "SELECT FROM t",
        "SELECT a FROM select", "SELECT * FROM t WHERE", "SELECT 'a' b' FROM t",
    ],
    "python_call": ["f(a)", "f(1", "import(1)", "f(x=1, 2)", "f(lambda: 1)", 'f("\n")'],
    "shell_command": ["a; b", "a | b", "a > b", "$(x)", "a `b`", "a &", "rm *", "x 'a'b'", ""],
    "iso_datetime": [
        "2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24:00", "0000-01-01", "2024-1-1",
    ],
    "csv_row": ['a"b', '"open', "a\nb", '"a"b'],
    "markdown_table": ["| a |\n", "| a |\n| b |\n", "a | b\n--- | ---\n", "| a |\n| --- |\n"],
    "xml_element": ["<a>", "text", "<a b=1/>", "<a>&</a>", "<1/>", '<a b="<"/>'],
    "unified_diff": ["", "--- a\n+++ b\n", "--- a\n+++ b\n@@ -1 +1 @@\nx\n", "+++ a\n--- b\n"],
}  # fmt: skip


@cache
def _load(name: str) -> LarkGrammar:
    return load_lark(shipped_source(name))


def test_each_shipped_grammar_has_cases() -> None:
    assert set(shipped_names()) == set(ACCEPTED) == set(REJECTED)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_shipped_grammar_is_exact_and_takes_texts_of_its_format(name: str) -> None:
    grammar = _load(name)

    assert grammar.translation.is_exact
    matcher = grammar.byte_matcher()
    for text in ACCEPTED[name]:
        assert matches(matcher.deep_copy(), text), text
        grammar.parse(text)


@pytest.mark.parametrize("name", REJECTED)
def test_a_shipped_grammar_refuses_other_texts(name: str) -> None:
    grammar = _load(name)

    matcher = grammar.byte_matcher()
    for text in REJECTED[name]:
        assert not matches(matcher.deep_copy(), text), text
        with pytest.raises(WorkflowError, match="not in the grammar"):
            grammar.parse(text)


def _read_sql(text: str) -> None:
    with sqlite3.connect(":memory:") as connection:
        try:
            connection.execute(text)
        except sqlite3.OperationalError as error:
            # There are no tables; what is no SELECT at all fails before that is seen.
            assert "syntax error" not in str(error), text


def _read_date(text: str) -> None:
    if re.match(r"[0-9]{2}:", text):
        time.fromisoformat(text)
    else:
        datetime.fromisoformat(text)


def _read_shell(text: str) -> None:
    words = shlex.split(text)
    assert "".join(words) == re.sub(r"[ ']", "", text) or "'" in text
    outside = "".join(text.split("'")[::2])
    assert not set(outside) & set('|&;<>()$`\\"*?[]#~!{}\n')


def _read_csv(text: str) -> None:
    assert len([*csv.reader(io.StringIO(text, newline=""), strict=True)]) <= 1


def _read_xml(text: str) -> None:
    try:
        ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        # Beyond a context-free grammar: a closing tag of another name, an attribute twice.
        assert re.search("mismatched tag|duplicate attribute", str(error)), text


READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "arithmetic": lambda text: ast.parse(text.replace("^", "**"), mode="eval"),
    "sql_select": _read_sql,
    "python_call": lambda text: ast.parse(text, mode="eval"),
    "iso_datetime": _read_date,
    "shell_command": _read_shell,
    "csv_row": _read_csv,
    "xml_element": _read_xml,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_sentences_of_a_shipped_grammar_are_read_by_others(name: str) -> None:
    grammar = _load(name)
    sampler = Sampler(grammar, Random(7), depth=6)
    read = READERS.get(name, str)

    for _ in range(25):
        sentence = sampler.sentence()
        assert sentence is not None
        grammar.parse(sentence)
        read(sentence)
