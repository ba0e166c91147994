"""Translating Lark grammars: lark's constructs, refusals with places, bounds on hostile input."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from lark import Transformer

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import matches
from flowforge.grammars.lark.backtracking import may_take_exponential_time
from flowforge.grammars.lark.following import describe_following, reach_of
from flowforge.grammars.lark.grammar import LarkGrammar, load_lark
from flowforge.grammars.lark.interruption import Interrupted, run_for
from flowforge.grammars.lark.regex_tree import parse_regex
from flowforge.grammars.lark.source import LarkSource, Parser

if TYPE_CHECKING:
    from pathlib import Path


def _load(
    text: str, *, start: str = "start", parser: Parser = "earley", approximate: bool = False
) -> LarkGrammar:
    return load_lark(
        LarkSource(text, "g.lark"), start=start, parser=parser, approximate=approximate
    )


def _takes(grammar: LarkGrammar, text: str) -> bool:
    is_taken = matches(grammar.byte_matcher(), text)
    if is_taken:
        grammar.parse(text)
    return is_taken


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        ('start: pair{"a", /b+/}\npair{x, y}: "<" x y ">"\n', ["<abb>"], ["<a>", "ab"]),
        ('start: "a"~2..3 ("b" | "c")~2\n', ["aabc", "aaacc"], ["abc", "aab"]),
        ('start: "a".."f"+\n', ["abf"], ["g", ""]),
        ('start: /[a-c]+/i "Select"i\n', ["AbSELECT"], ["dselect"]),
        ("start: /a b # c\n +c/x\n", ["abbc"[:0] + "abc"], ["a b c"]),
        ('start: ["a"] "b" ["c"]\n', ["b", "ab", "abc"], ["a", "ac"]),
        ('start: A\nA: "x"\n%extend A: "y"\n', ["x", "y"], ["xy"]),
        ('%import common.INT\n%override INT: "7"\nstart: INT\n', ["7"], ["8"]),
        ('start: "a" -> one\n | "b" -> two\n', ["a", "b"], ["c"]),
        ('start: a\na.2: "x"\n | "y"\n%ignore /[ \\n]+/\n', [" x ", "y\n"], ["x y"]),
        ("start: /é+/ /[^x]/ /./\n", ["ééa💡"], ["éx", "éa\n"]),
        ('start: /\\w+/ "."\n', ["größe_9."], ["a-b."]),
        ('start: A B\nA: /a*?/ "b"\nB: /(x|xy)z?/\n', ["aabxz", "bx"], ["aabxyz"]),
        ("start: /a(?=b)b|c(?!d)./\n", ["ab", "ce"], ["ac", "cd"]),
        ('start: /"(?!"")(\\\\.|[^"\\\\])*"/ ";"\n', ['"a";', '"";', '"\\"";'], ['"a;']),
        ('start: /a(?m:$)/ "\\n"?\n', ["a", "a\n"], ["ab"]),
    ],
)
def test_a_construct_means_what_it_means_to_lark(
    grammar: str, taken: list[str], refused: list[str]
) -> None:
    loaded = _load(grammar)

    assert loaded.translation.is_exact
    for text in taken:
        assert _takes(loaded, text), text
    for text in refused:
        assert not _takes(loaded, text), text


def test_a_start_rule_can_be_chosen_and_prunes_what_it_does_not_reach() -> None:
    text = "start: block\nblock: _INDENT expr\nexpr: /[0-9]+/\n%declare _INDENT\n"

    with pytest.raises(WorkflowError, match="'_INDENT' is only declared"):
        _load(text)
    assert _takes(_load(text, start="expr"), "12")


@pytest.mark.parametrize(
    ("grammar", "construct", "line", "column"),
    [
        ("start: A\nA: /(a)\\1/\n", "back-reference", 2, 8),
        ("start: A\nA: /a++b/\n", "possessive", 2, 6),
        ("start: A\nA: /(?>a|b)c/\n", "atomic", 2, 5),
        ('start: A B\nA: /a(?!x)/\nB: "x" | "y"\n', "'(?!'", 2, 6),
        ("start: A\nA: /(?<!x)a/\n", "'(?<!'", 2, 5),
        ('start: "b" /x\\by/\n', "no text can match it", 1, 12),
        ("start: (\n", "lark refuses", 1, 9),
        ("start: a\n", "'a' used but not defined", 1, 1),
    ],
)
def test_what_cannot_be_masked_is_refused_at_its_place(
    grammar: str, construct: str, line: int, column: int
) -> None:
    with pytest.raises(WorkflowError) as refused:
        _load(grammar)

    location = refused.value.location
    assert construct in refused.value.message
    assert location is not None
    assert ("g.lark", line) == (location.file, location.line)
    assert column == location.column


def test_approximate_leaves_a_look_out_and_has_lark_judge() -> None:
    grammar = _load('start: A B\nA: /a(?!x)/\nB: "x" | "y"\n', approximate=True)

    assert not grammar.translation.is_exact
    assert matches(grammar.byte_matcher(), "ax")
    with pytest.raises(WorkflowError, match="not in the grammar"):
        grammar.parse("ax")


def test_keywords_are_kept_from_names_where_the_lexer_of_lalr_does_so() -> None:
    text = 'start: "if" NAME\nNAME: /[a-z]+/\n%ignore " "\n'
    both = 'start: ("if" | NAME) ";"\nNAME: /[a-z]+/\n'

    assert _takes(_load(text, parser="earley"), "if if")
    assert _takes(_load(text, parser="lalr"), "if if")
    lalr = _load(both, parser="lalr")
    assert ("NAME",) == lalr.translation.restricted
    assert _takes(lalr, "if;")
    assert _takes(lalr, "iffy;")


def test_a_missing_start_says_which_rules_there_are() -> None:
    with pytest.raises(WorkflowError) as refused:
        _load('a: "x"\nb: "y"\n')

    assert "its rules: a, b" in str(refused.value.help)


def test_an_import_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text("start: X\n%import .other.X\n")

    with pytest.raises(WorkflowError) as refused:
        load_lark(LarkSource.of_file(file))

    assert "WF430" == refused.value.code
    assert "other.lark" in refused.value.message
    assert str(refused.value.location).endswith("g.lark:2:10")


def test_an_imported_grammar_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text("%import .inner.other.WORD\nstart: WORD\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "other.lark").write_text("%import .more.WORD\n", "utf-8-sig")
    (tmp_path / "inner" / "more.lark").write_text("WORD: /[a-z]+/\n", "utf-8-sig")

    assert _takes(load_lark(LarkSource.of_file(file)), "word")


def test_an_imported_grammar_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text("start: X\n%import .other.X\n")
    (tmp_path / "other.lark").write_bytes(b"\xff\xfeX: /x/\n")

    with pytest.raises(WorkflowError) as refused:
        load_lark(LarkSource.of_file(file))

    assert "WF430" == refused.value.code
    assert "other.lark" in refused.value.message
    assert "save it as UTF-8" == refused.value.help


def test_a_transformer_makes_a_value_of_a_text() -> None:
    class Sum(Transformer[object, int]):
        def start(self, numbers: list[str]) -> int:
            return sum(map(int, numbers))

    grammar = _load('start: N ("+" N)*\nN: /[0-9]+/\n')

    assert 6 == grammar.transform("1+2+3", Sum())


def test_a_tree_as_a_value() -> None:
    grammar = _load('start: [A] sum\n?sum: B | sum "+" B -> add\nA: "a"\nB: "b"\n')

    b_and_b = {"rule": "add", "children": ["b", "b"]}
    assert {"rule": "start", "children": [None, b_and_b]} == grammar.tree("b+b")


def test_a_tree_that_is_too_deep_is_an_error() -> None:
    grammar = _load('start: "(" start ")" | "x"\n')

    assert grammar.tree("(" * 50 + "x" + ")" * 50)
    with pytest.raises(WorkflowError) as refused:
        grammar.tree("(" * 100 + "x" + ")" * 100)
    assert "WF434" == refused.value.code
    assert "tree: false" in str(refused.value.help)


# -- hostile input --------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a*)*b", "(a|aa)+b", "(.*,)*x", "(a?){40}b"])
def test_a_catastrophic_regex_is_known_as_one(pattern: str) -> None:
    assert may_take_exponential_time(parse_regex(pattern))


@pytest.mark.parametrize("pattern", ['"(\\\\.|[^"\\\\])*"', "(a|b)*c", "([a-z]+ )*x", "a*a*b"])
def test_an_ordinary_regex_is_not_taken_for_a_catastrophic_one(pattern: str) -> None:
    assert not may_take_exponential_time(parse_regex(pattern))


def test_a_catastrophic_regex_cannot_hang_the_judge() -> None:
    grammar = _load('start: A | /a+/ "!"\nA: /(a+)+b/\n')

    begun = time.monotonic()
    assert _takes(grammar, "a" * 2_000 + "b")
    assert _takes(grammar, "a" * 2_000 + "!")
    assert time.monotonic() - begun < 60  # `re` alone would take longer than the sun


def test_a_fully_ambiguous_grammar_is_bounded() -> None:
    grammar = _load('start: e\ne: e e | "a" | e "a" e |\n')

    assert matches(grammar.byte_matcher(), "a" * 30)
    with pytest.raises(WorkflowError) as refused:
        grammar.parse("a" * 400, seconds=0.2)
    assert "WF434" == refused.value.code


def test_a_huge_grammar_is_refused_before_it_is_read() -> None:
    with pytest.raises(WorkflowError, match="expected at most 200,000"):
        _load("start: " + '"a" | ' * 40_000 + '"b"\n')


def test_a_grammar_with_very_many_terminals_is_refused() -> None:
    names = [f'"k{number}"' for number in range(1_200)]

    with pytest.raises(WorkflowError, match=re.escape("1,200 terminals, expected at most 1,000")):
        _load("start: " + " | ".join(names) + "\n")


def test_a_grammar_that_takes_too_long_to_read_is_refused() -> None:
    text = "start: " + "(A " * 200 + ")?" * 200 + '\nA: "a"\n'

    with pytest.raises(WorkflowError, match=r"took longer than 0\.1 s") as caught:
        load_lark(LarkSource(text, "g.lark"), seconds=0.1)

    assert "WF430" == caught.value.code
    assert "g.lark:1:1" == str(caught.value.location)


def test_work_is_interrupted_when_its_time_is_over() -> None:
    def forever() -> None:
        while True:
            pass

    with pytest.raises(Interrupted):
        run_for(0.05, forever)
    assert 3 == run_for(5, lambda: 3)


def test_work_is_interrupted_even_if_the_first_time_is_lost() -> None:
    def deaf_once() -> None:
        try:
            while True:
                pass
        except Interrupted:
            # As Python does with what is raised in a callback of the garbage collector.
            pass
        while True:
            pass

    with pytest.raises(Interrupted):
        run_for(0.05, deaf_once)


def test_an_interruption_that_python_drops_is_no_warning() -> None:
    class Endless:
        def __del__(self) -> None:
            while True:
                pass

    def drop_and_go_on() -> None:
        Endless()
        while True:
            pass

    with pytest.raises(Interrupted):
        run_for(0.05, drop_and_go_on)


AFTER_AN_INTERRUPTION = """
import sys
from flowforge.grammars.lark.interruption import Interrupted, run_for

def forever():
    while True:
        pass

assert 3 == run_for(5, lambda: 3)
try:
    run_for(0.05, forever)
except Interrupted:
    sys.settrace(lambda *about: None)
    print(len([*map(str, range(100))]), (lambda: "goes on")())
"""


def test_a_tracer_goes_on_after_an_interruption() -> None:
    command = [sys.executable, "-c", AFTER_AN_INTERRUPTION]

    # It waited for ever where an interruption was taken back, or a work was done in time.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "100 goes on\n" == done.stdout


# -- how far a text goes --------------------------------------------------------------------------


def test_a_text_that_stops_says_where_and_what_could_follow() -> None:
    grammar = _load('start: "a" /[b-e0]/ "é"\n')

    reach = reach_of(grammar.byte_matcher(), "aé")

    assert (1, False) == (reach.num_chars, reach.is_accepted)
    assert "'0', 'b' to 'e'" == describe_following(reach)
    assert "other characters" == describe_following(reach_of(grammar.byte_matcher(), "ab"))
    assert "the end" == describe_following(reach_of(grammar.byte_matcher(), "abé"))
