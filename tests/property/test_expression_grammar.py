"""The expression parser against the grammar that documents it: same texts, same trees."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput

from flowforge.language.expression_nodes import (
    Arithmetic,
    Coalesce,
    Comparison,
    Conditional,
    Constant,
    FieldOf,
    ItemOf,
    ListOf,
    Logical,
    Name,
    Negative,
    Node,
    Not,
    Piped,
)
from flowforge.language.expression_parser import ExpressionSyntaxError, parse_expression

if TYPE_CHECKING:
    from flowforge.language.expression_nodes import ArithmeticOperator, ComparisonOperator

TOKENS = st.sampled_from(
    ["a", "b-c", "é", ".", ".x", "[", "]", "(", ")", "|", " join ", "len", "'x'", '"y"', "1", "-1",
     "-", "2.5", "1e3", " in ", " not ", " and ", " or ", " if ", " else ", "??", "==", "<", "<=",
     ",", "null", "true", "false", "+", "*", "/", "%", " ", "=", "?"]
)  # fmt: skip
ATOMS = st.sampled_from(
    ["a", "1", "-1", "'x'", "true", "b.not", "c[0]", "d | f", "e | f(1, g)", "[]"]
)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(
        ["+", "-", "*", "/", "%", "==", "<", "in", "not in", "and", "or", "??"]
    )
    return st.one_of(
        st.builds("{} {} {}".format, inner, operators, inner),
        st.builds("{} if {} else {}".format, inner, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("-{}".format, inner),
        st.builds("({})".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{} | f({})".format, inner, inner),
        st.builds("{}[{}].x".format, inner, inner),
    )


EXPRESSIONS = st.one_of(
    st.lists(TOKENS, max_size=12).map("".join), st.recursive(ATOMS, _combined, max_leaves=12)
)


@v_args(inline=True)
class _TreeBuilder(Transformer[Token, Node]):
    """Builds nodes while the parser runs, so that nothing recurses over a deep tree."""

    def name(self, token: Token) -> Node:
        return Name(_start(token), _end(token), str(token))

    def number(self, token: Token) -> Node:
        text = str(token)
        value = int(text) if text.lstrip("-").isdigit() else float(text)
        return Constant(_start(token), _end(token), value)

    def string(self, token: Token) -> Node:
        return Constant(_start(token), _end(token), str(token)[1:-1])

    def true(self, token: Token) -> Node:
        return Constant(_start(token), _end(token), True)

    def false(self, token: Token) -> Node:
        return Constant(_start(token), _end(token), False)

    def null(self, token: Token) -> Node:
        return Constant(_start(token), _end(token), None)

    def group(self, opening: Token, node: Node, closing: Token) -> Node:
        return replace(node, start=_start(opening), end=_end(closing))

    def list_of(self, opening: Token, *rest: Node | Token) -> Node:
        closing = cast("Token", rest[-1])
        items = cast("tuple[Node, ...]", rest[:-1])
        return ListOf(_start(opening), _end(closing), items)

    def field(self, subject: Node, token: Token) -> Node:
        return FieldOf(subject.start, _end(token), subject, str(token), _start(token))

    def item(self, subject: Node, index: Node) -> Node:
        return ItemOf(subject.start, index.end + 1, subject, index)

    def filtered(self, subject: Node, name: Token, *rest: Node | Token) -> Node:
        end = _end(cast("Token", rest[-1]) if rest else name)
        arguments = cast("tuple[Node, ...]", rest[1:-1])
        return Piped(subject.start, end, subject, str(name), _start(name), arguments)

    def coalesce(self, left: Node, right: Node) -> Node:
        return Coalesce(left.start, right.end, left, right)

    def arithmetic(self, left: Node, operator: Token, right: Node) -> Node:
        symbol = cast("ArithmeticOperator", str(operator))
        return Arithmetic(left.start, right.end, symbol, left, right)

    def negative(self, token: Token, operand: Node) -> Node:
        return Negative(_start(token), operand.end, operand)

    def comparison(self, left: Node, operator: Token, right: Node) -> Node:
        symbol = cast("ComparisonOperator", str(operator))
        return Comparison(left.start, right.end, symbol, left, right)

    def is_in(self, left: Node, _in: Token, right: Node) -> Node:
        return Comparison(left.start, right.end, "in", left, right)

    def is_not_in(self, left: Node, _not: Token, _in: Token, right: Node) -> Node:
        return Comparison(left.start, right.end, "not in", left, right)

    def negation(self, token: Token, operand: Node) -> Node:
        return Not(_start(token), operand.end, operand)

    def conjunction(self, left: Node, _and: Token, right: Node) -> Node:
        return Logical(left.start, right.end, "and", left, right)

    def disjunction(self, left: Node, _or: Token, right: Node) -> Node:
        return Logical(left.start, right.end, "or", left, right)

    def conditional(
        self, chosen: Node, _if: Token, condition: Node, _else: Token, otherwise: Node
    ) -> Node:
        return Conditional(chosen.start, otherwise.end, chosen, condition, otherwise)


def _start(token: Token) -> int:
    return token.start_pos or 0


def _end(token: Token) -> int:
    return token.end_pos or 0


@pytest.fixture(scope="module", name="grammar")
def grammar_parser() -> Lark:
    text = resources.files("flowforge.language").joinpath("expression.lark").read_text("utf-8")
    return Lark(text, parser="lalr", transformer=_TreeBuilder(), maybe_placeholders=False)


@settings(max_examples=1500, deadline=None)
@given(text=EXPRESSIONS)
def test_the_parser_and_the_grammar_agree_on_every_text(grammar: Lark, text: str) -> None:
    try:
        node = parse_expression(text)
    except ExpressionSyntaxError as error:
        if error.code == "WF201":
            with pytest.raises(UnexpectedInput):
                grammar.parse(text)
        return

    assert cast("Node", grammar.parse(text)) == node
