"""Patterns that Python reads and no mask keeps: which part it is, and what is written instead."""

from __future__ import annotations

import re

import pytest

from flowforge.errors import WorkflowError
from flowforge.grammars import check_schema
from flowforge.grammars.json_patterns import why_not_masked
from flowforge.grammars.text_forms import matches_regex
from flowforge.language.loader import load_text
from flowforge.patterns import unmaskable

BEYOND = [
    ("a(?=b)c", "'(?=' at position 1 looks ahead", "say what may stand there"),
    ("(?!a)b", "'(?!' at position 0 looks ahead", "say what is allowed"),
    ("(?<=a)b", "'(?<=' at position 0 looks behind", "say what may stand there"),
    ("(?<!a)b", "'(?<!' at position 0 looks behind", "say what is allowed"),
    (r"(a|b)\1", r"'\\1' at position 5 repeats", "write out the texts that repeat"),
    ("(?P<x>a)(?P=x)", "'(?P=x)' at position 8 repeats", "write out the texts"),
    ("(a)?(?(1)b|c)", "'(?(' at position 4 depends", "both alternatives"),
    ("(?>a)b", "'(?>' at position 0 is a group", "(?:"),
    ("(?#why)a", "'(?#' at position 0 is a comment", "leave it out"),
    ("(?a)a", "'(?a' at position 0 is a flag", "leave it out"),
    (r"\bfoo", r"'\\b' at position 0 looks around", "beside the word"),
    (r"fo\Bo", r"'\\B' at position 2 looks around", "beside the word"),
    (r"foo\Z", r"'\\Z' at position 3 is Python's end", "'$'"),
    (r"\N{BULLET}", r"'\\N' at position 0 names a character", "the character itself"),
    (r"\07", r"'\\07' at position 0 is an octal number", r"\x"),
    ("a{,3}", "'{,3}' at position 1 lacks", "{0,"),
]
KEPT = [
    *(r"\\b", r"\\1", "[(?=]", r"[\b]", r"\(?=a", "[]]x", "a{0,3}", r"\{,3}", "(?i)a", "(?P<x>a)"),
    *("(?:a|b)", "[^]a]b", r"\u00e4", "(?s:.)"),
]


@pytest.mark.parametrize(("pattern", "reason", "instead"), BEYOND)
def test_what_no_mask_keeps_is_named_with_its_place(
    pattern: str, reason: str, instead: str
) -> None:
    re.compile(pattern)
    assert why_not_masked(pattern) is not None, "a mask refuses it"

    found = unmaskable(pattern)

    assert found is not None
    assert found.reason.startswith(reason)
    assert instead in found.instead


@pytest.mark.parametrize("pattern", KEPT)
def test_what_masks_keep_is_let_through(pattern: str) -> None:
    assert unmaskable(pattern) is None
    if pattern != r"[\b]":
        assert why_not_masked(pattern) is None


@pytest.mark.parametrize(("pattern", "reason", "instead"), BEYOND)
def test_a_workflow_is_told_at_check(pattern: str, reason: str, instead: str) -> None:
    head = "flowforge: 1\nname: t\nsteps:\n"
    step = f"  a: {{ user: hi, gen: {{ regex: '{pattern}', max_tokens: 9 }} }}\n"

    (problem,) = load_text(head + step).diagnostics

    assert "WF134" == problem.code
    assert reason in problem.message
    assert instead in (problem.help or "")


def test_the_advice_on_a_schema_says_what_to_write_before_it_says_how_to_relax() -> None:
    (problem,) = check_schema({"type": "string", "pattern": r"^\bfoo$"})

    assert "looks around" in problem.message
    assert problem.help is not None
    assert problem.help.startswith("write what stands beside the word: (?:^|[^a-z])word; or ")


def test_a_stray_anchor_is_named_where_the_mask_refuses_it() -> None:
    (problem,) = check_schema({"type": "string", "pattern": "a$b"})

    assert "'$' at position 1 stands within the pattern" in problem.message
    assert check_schema({"type": "string", "pattern": "(^a|^b)$"}) == []


def test_a_regex_that_comes_to_the_mask_unchecked_is_told_alike() -> None:
    with pytest.raises(WorkflowError, match=r"'\(\?=' at position 0 looks ahead") as told:
        matches_regex("(?=a)b", "b")

    assert "WF414" == told.value.code
