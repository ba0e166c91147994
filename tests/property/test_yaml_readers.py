"""The reader of plain YAML against the thorough one: what it accepts it reads the same."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.language.source import Source
from flowforge.language.yaml_composer import compose
from flowforge.language.yaml_plain_reader import read_plain

ROOT = pathlib.Path(__file__).parent.parent.parent
FILES = sorted((*ROOT.glob("workflows/*.yaml"), *ROOT.glob("tests/cases/workflows/*.yaml")))
PIECES = st.sampled_from(
    ["a", "b: ", "c:", "d: ", "\n", "\n  ", "\n    ", "\n\n", "\n ", "- ", "-", " # x", "#", "x y",
     "1", "null", "true", "1.5", "'q'", "'it''s'", '"d\\n"', '"', "'", "|\n", "|-\n", "|+\n", ">\n",
     "[", "]", "{", "}", ", ", ",", "{ k: v }", "[1, x y]", "${ a }", ": ", ":", "&a ", "*a", "!t ",
     "<<: ", "? ", "---", "\t", "-1", "é", "=", "|", "\\", "  ", "~", "010", "0x1F",
     "e: |\n  t\n", "f: [\n  1\n]\n"]
)  # fmt: skip
LINES = st.sampled_from(
    ["a: 1", "b:", "  c: x", "  d:", "    - 1", "    - e: 2", "      f: 3", "- g", "h: |", "", "]",
     "    text", "   more", "# no", "i: {j: k, l: [m, n]}", "o: 'p' # q", "r: s: t", "  - u",
     "v: {", "  w: x }", "y: [", " z", "    ", "aa: b # c", 'bb: "c\\td"', "cc: - d", "dd: {e: ''}",
     "ff: [a, b,]", "gg: {h}", "  hh: |-", "      ii", "jj: ${ a | f(1, 'b: c') ?? d }", "kk: l#m",
     "nn: [${ a }]", "  oo: { pp: 'q', rr: -1,", "      ss: t-u/v }", "ww: 'x", "  y'"]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(LINES, max_size=9).map("\n".join),
    st.lists(LINES, max_size=9).map(lambda lines: "".join(f"{line}\n" for line in lines)),
    st.lists(PIECES, max_size=14).map("".join),
)


@settings(max_examples=3000, deadline=None)
@given(TEXTS)
def test_a_text_that_the_plain_reader_accepts_has_the_thorough_readers_tree(text: str) -> None:
    plain = read_plain(text)

    if plain is not None:
        composed = compose(Source("f.yaml", text))
        assert composed.diagnostics == []
        assert composed.root == plain


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_workflows_of_the_project_are_plain(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")

    plain = read_plain(text)

    assert plain is not None
    assert compose(Source("f.yaml", text)).root == plain
