"""Real grammars: what they accept passes the mask byte by byte, what they reject does not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from flowforge.errors import WorkflowError
from flowforge.grammars.lark.grammar import LarkGrammar, load_lark
from flowforge.grammars.lark.source import LarkSource, Parser

CASES = Path(__file__).parents[1] / "cases" / "lark"
EXACT = (
    "beancount", "cel", "graphql-sdl", "poetry-markers", "poetry-pep508", "smtlib", "sql-ibis",
)  # fmt: skip
APPROXIMATE = ("lark-meta",)
# Where refused, the place is that of the construct.
IMPOSSIBLE = {
    "hcl2": ("STRING_CHARS", "(?!", "hcl2.lark", 26, 21),
    "mapfile": ("UNQUOTED_STRING_VALUE", "declared", "mapfile.lark", 62, 10),
}
# Keywords and identifiers are told apart by lark's LALR lexer, and not by its Earley parser.
ONLY_LALR_REJECTS = ("(declare-const x)",)


@dataclass(frozen=True, slots=True)
class Case:
    path: Path
    start: str
    accepted: list[str]
    rejected: list[str]


def _case(name: str) -> Case:
    fields = json.loads((CASES / name / "cases.json").read_text())
    rejected = [one["text"] for one in fields["rejected"]]
    return Case(CASES / name / fields["grammar"], fields["start"], fields["accepted"], rejected)


@cache
def _load(name: str, parser: Parser, *, approximate: bool = False) -> LarkGrammar:
    case = _case(name)
    source = LarkSource.of_file(case.path)
    return load_lark(source, start=case.start, parser=parser, approximate=approximate)


def test_every_case_is_sorted() -> None:
    assert {*EXACT, *APPROXIMATE, *IMPOSSIBLE} == {
        one.name for one in CASES.iterdir() if one.is_dir()
    }


@pytest.mark.parametrize("parser", ["earley", "lalr"])
@pytest.mark.parametrize("name", [*EXACT, *APPROXIMATE])
def test_accepted_texts_pass_step_by_step(name: str, parser: Parser) -> None:
    grammar = _load(name, parser, approximate=name in APPROXIMATE)

    for text in _case(name).accepted:
        matcher = grammar.byte_matcher()
        for byte in text.encode():
            mask = matcher.compute_bitmask()
            assert mask[byte // 8] >> (byte % 8) & 1, (text, byte)
            assert matcher.consume_token(byte)
        assert matcher.is_accepting(), text
        grammar.parse(text)


@pytest.mark.parametrize("parser", ["earley", "lalr"])
@pytest.mark.parametrize("name", [*EXACT, *APPROXIMATE])
def test_rejected_texts_do_not_pass(name: str, parser: Parser) -> None:
    grammar = _load(name, parser, approximate=name in APPROXIMATE)

    for text in _case(name).rejected:
        matcher = grammar.byte_matcher()
        num_taken = matcher.validate_tokens(list(text.encode()))
        if num_taken == len(text.encode()):
            matcher.consume_tokens(list(text.encode()))
            is_accepted = matcher.is_accepting()
        else:
            is_accepted = False
        assert is_accepted == (parser == "earley" and text in ONLY_LALR_REJECTS), text


@pytest.mark.parametrize("name", EXACT)
def test_nothing_of_an_exact_grammar_is_left_out(name: str) -> None:
    assert _load(name, "earley").translation.is_exact
    assert _load(name, "lalr").translation.is_exact


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_approximate_grammar_is_refused_unless_asked_for(name: str) -> None:
    with pytest.raises(WorkflowError) as refused:
        _load(name, "earley")

    assert refused.value.code == "WF432"
    assert "'(?!'" in refused.value.message
    assert "approximate: true" in str(refused.value.help)
    assert str(refused.value.location).endswith("lark.lark:48:14")
    approximate = _load(name, "earley", approximate=True)
    assert [problem.severity for problem in approximate.translation.problems] == ["warning"]


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_grammar_is_refused_with_the_construct_and_its_place(
    name: str, approximate: bool
) -> None:
    terminal, construct, file, line, column = IMPOSSIBLE[name]

    with pytest.raises(WorkflowError) as refused:
        _load(name, "earley", approximate=approximate)

    error = refused.value
    assert error.code == "WF432"
    assert terminal in error.message
    assert error.location is not None
    assert Path(error.location.file).name == file
    assert error.location.line == line
    if not approximate:
        assert construct in error.message
        assert error.location.column == column
