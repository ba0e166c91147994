"""What the mask accepts lark parses, and what lark's rules derive the mask accepts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark

from flowforge.grammars.lark.grammar import LarkGrammar, load_lark
from flowforge.grammars.lark.sampling import Sampler
from flowforge.grammars.lark.shipped import shipped_names, shipped_source
from flowforge.grammars.lark.source import LarkSource

CASES = Path(__file__).parents[1] / "cases" / "lark"
# Terminals that overlap, lazy ones, looks, ignored text that begins like other text, priorities.
SMALL = {
    "overlap": 'start: (A | B | AB)+\nA: "a"\nB: "b"\nAB: /ab?/\n',
    "order": 'start: (X "," )+ Y\nX: /a|ab|b??c/\nY: /(ab|a)(c|bcd)?/\n',
    "lazy": 'start: (S | C | W)+\nS: /"(.|\\n)*?(?<!\\\\)(\\\\\\\\)*?"/\nC: /<!--.*?-->/\n'
    'W: /[a-z]+/\n%ignore " "',
    "looks": 'start: (KEY " " NAME "=" NUMBER ";")+\nKEY: /(if|else)\\b/\n'
    "NAME: /(?!(if|else)\\b)[a-z]+/\nNUMBER: /0(?![0-9])|[1-9][0-9]*/\n",
    "ignored": 'start: (A | "/" B)+\nA: /a+/\nB: /b/\nCOMMENT: /\\s*/ "//" /[^\\n]*/\n'
    "%ignore COMMENT\n%ignore /[ ]+/\n",
    "priority": 'start: (IF NAME ";")+\nIF.2: "if"\nNAME: /[a-z]+/\n%ignore " "\n',
    "template": 'start: list{NUMBER, ","}\nlist{item, mark}: "[" (item (mark item)*)? "]"\n'
    "NUMBER: /[0-9]+/\n%ignore /\\s/\n",
    "imports": "%import common (SIGNED_NUMBER, ESCAPED_STRING, WS, CNAME)\n%ignore WS\n"
    'start: CNAME "=" v\n?v: SIGNED_NUMBER | ESCAPED_STRING | "[" [v ("," v)*] "]"\n',
    "empty": 'start: a? b* "x"\na: | "a" a\nb: a "b"\n',
    "repeats": 'start: "a"~2..4 ("b" | "cc")~3\n',
}
REAL = (
    ("poetry-markers", "markers.lark", "start"),
    ("cel", "cel.lark", "expr"),
    ("sql-ibis", "sql.lark", "start"),
    ("graphql-sdl", "graphql_sdl_grammar.lark", "document"),
    ("smtlib", "smtlib.lark", "start"),
)


@cache
def _small(name: str) -> LarkGrammar:
    return load_lark(LarkSource(SMALL[name], f"{name}.lark"))


@cache
def _real(name: str) -> LarkGrammar:
    folder, file, start = next(one for one in REAL if one[0] == name)
    return load_lark(LarkSource.of_file(CASES / folder / file), start=start)


@cache
def _shipped(name: str) -> LarkGrammar:
    return load_lark(shipped_source(name))


def _walk(grammar: LarkGrammar, choices: Random, num_bytes: int) -> list[str]:
    """Texts that a walk under the mask comes by and that may end there."""
    matcher = grammar.byte_matcher()
    text, found = bytearray(), list[str]()
    for _ in range(num_bytes):
        if matcher.is_accepting():
            found.append(text.decode())
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1]
        if not allowed or matcher.is_stopped():
            break
        plain = [byte for byte in allowed if 0x20 <= byte < 0x7F]
        byte = choices.choice(plain if plain and choices.random() < 0.95 else allowed)
        assert matcher.consume_token(byte)
        text.append(byte)
    if matcher.is_accepting():
        found.append(text.decode())
    return found


def _check_walk(grammar: LarkGrammar, choices: Random, num_bytes: int) -> None:
    judge = grammar.loaded.lark
    for text in _walk(grammar, choices, num_bytes)[-4:]:
        judge.parse(text)


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_what_the_mask_of_a_small_grammar_accepts_lark_parses(name: str, choices: Random) -> None:
    grammar = _small(name)
    assert grammar.translation.is_exact

    _check_walk(grammar, choices, num_bytes=24)


@pytest.mark.parametrize("name", SMALL)
def test_the_judge_is_lark_with_the_grammar_as_it_is(name: str) -> None:
    """Where a pattern was exchanged for a safe one, lark alone would say the same."""
    grammar, alone = _small(name), Lark(SMALL[name])
    choices = Random(3)

    for _ in range(20):
        for text in _walk(grammar, choices, 16)[-2:]:
            assert grammar.parse(text) == alone.parse(text)


@pytest.mark.parametrize("name", [name for name, _, _ in REAL])
@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_what_the_mask_of_a_real_grammar_accepts_lark_parses(name: str, choices: Random) -> None:
    _check_walk(_real(name), choices, num_bytes=40)


@pytest.mark.parametrize("name", shipped_names())
@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_what_the_mask_of_a_shipped_grammar_accepts_lark_parses(name: str, choices: Random) -> None:
    _check_walk(_shipped(name), choices, num_bytes=60)


@pytest.mark.parametrize("name", [*SMALL, *(name for name, _, _ in REAL)])
def test_sentences_of_the_rules_pass_the_mask_and_lark(name: str) -> None:
    grammar = _small(name) if name in SMALL else _real(name)
    sampler = Sampler(grammar, Random(11), depth=8)

    found = [sampler.sentence() for _ in range(12)]

    assert None not in found
    for text in found:
        assert text is not None
        grammar.parse(text)
