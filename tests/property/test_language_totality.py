"""Whatever the text: the loader answers with diagnostics, the parser with a tree or an error."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.language.diagnostics import render_diagnostics
from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import ExpressionSyntaxError, parse_expression
from flowforge.language.json_values import EvaluationError
from flowforge.language.loader import load_text

PIECES = st.sampled_from(
    ["steps:", "flowforge: 1", "name: t", "a", ": ", "\n", "  ", "\n  ", "\n    ", "- ", "{", "}",
     "[", "]", "${ ", " }", "&a ", "*a", "!x ", "|", ">", "'", '"', "\\", "#", " #", "<<: ", "? ",
     "---\n", "%YAML", "\t", "gen:", "for: x in a", "do:", "user: ", "from: ", "json: ", "null",
     "0x", "\U0001f600", "\x85", "\u2028", "\r", ",", "inputs: ", "type: ", "\ufeff", "\x00", "\\U"]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=30).map("".join))
TOKENS = st.sampled_from(
    ["a", "b", ".", "[", "]", "(", ")", "|", " join ", "len", "'x'", '"', "1", "-1", " in ",
     " not ", " and ", " if ", " else ", "??", "==", "<", ",", "null", "true", "\\", "1e999"]
)  # fmt: skip
EXPRESSIONS = st.one_of(st.text(max_size=40), st.lists(TOKENS, max_size=15).map("".join))


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_loading_any_text_ends_in_a_program_or_in_errors_that_render(text: str) -> None:
    result = load_text(text)

    has_errors = any(one.severity == "error" for one in result.diagnostics)
    assert (result.program is None) == has_errors
    assert render_diagnostics(result.diagnostics)


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_loading_any_prompt_ends_in_a_program_or_in_errors(prompt: str) -> None:
    body = prompt.replace("\n", "\n      ")
    text = f"flowforge: 1\nname: t\nsteps:\n  a:\n    gen:\n    user: |\n      ${{ {body} }}\n"

    result = load_text(text)

    assert (result.program is None) == any(one.severity == "error" for one in result.diagnostics)


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS)
def test_any_expression_parses_or_says_where_it_does_not(text: str) -> None:
    try:
        node = parse_expression(text)
    except ExpressionSyntaxError as error:
        assert 0 <= error.start <= error.end <= len(text) + 2
        return
    assert 0 <= node.start <= node.end <= len(text)
    with contextlib.suppress(EvaluationError):
        evaluate_node(node, {"a": [1, "x"], "b": {"c": None}})
