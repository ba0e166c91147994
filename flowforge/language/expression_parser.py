"""Expression text to syntax tree, with Lark's LALR parser; the grammar is in expression.lark."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

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
    depth_of,
)

if TYPE_CHECKING:
    from flowforge.language.expression_nodes import ArithmeticOperator, ComparisonOperator

MAX_EXPRESSION_CHARS = 4_000
MAX_EXPRESSION_DEPTH = 64
RESERVED_WORDS = frozenset(("and", "or", "not", "in", "if", "else", "true", "false", "null"))


class ExpressionSyntaxError(Exception):
    """An expression cannot be parsed. start, end: the characters at fault within its text."""

    def __init__(
        self, code: str, message: str, start: int, end: int, help: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.start = start
        self.end = end
        self.help = help


@functools.lru_cache(maxsize=4096)
def parse_expression(text: str) -> Node:
    """The tree of an expression. Raises ExpressionSyntaxError, nothing else."""
    if len(text) > MAX_EXPRESSION_CHARS:
        message = f"the expression has {len(text):,} characters, over {MAX_EXPRESSION_CHARS:,}"
        raise ExpressionSyntaxError("WF209", message, 0, 2, "split it over several steps")
    if not text.strip():
        message = "the expression is empty"
        raise ExpressionSyntaxError(
            "WF207", message, 0, len(text), "name a value, as in ${ topic }"
        )
    try:
        node = cast("Node", _parser().parse(text))
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from error
    if depth_of(node) > MAX_EXPRESSION_DEPTH:
        message = f"the expression is nested deeper than {MAX_EXPRESSION_DEPTH} levels"
        raise ExpressionSyntaxError("WF209", message, 0, len(text), "split it over several steps")
    return node


@functools.cache
def _parser() -> Lark:
    grammar = resources.files("flowforge.language").joinpath("expression.lark")
    return Lark(
        grammar.read_text(encoding="utf-8"),
        parser="lalr",
        transformer=_TreeBuilder(),
        maybe_placeholders=False,
    )


_HINTS = {
    "=": "'==' compares",
    "&": "write 'and'",
    "!": "write 'not', or '!=' to compare",
    "{": "an expression holds no '{'; quote texts",
    "`": "quote texts with ' or \"",
    '"': "the text is not closed",
    "'": "the text is not closed",
    "(": "there are no calls; filters are written value | filter(…)",
    ".": "a field's name follows '.', and a list's item is written list[0]",
}


def _syntax_error(text: str, error: UnexpectedInput) -> ExpressionSyntaxError:
    start = min(max(_position_of(error), 0), len(text))
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        end = len(text.rstrip())
        message = "the expression ends too early"
        return ExpressionSyntaxError("WF201", message, max(end - 1, 0), end, "something is missing")
    found = text[start : start + 1]
    if isinstance(error, UnexpectedToken):
        found = str(error.token)
        chained = error.token.type in ("COMPARE", "IN", "NOT")
        help = "compare twice and join with 'and'" if chained else _HINTS.get(found)
    else:
        assert isinstance(error, UnexpectedCharacters)
        help = _HINTS.get(found)
    end = start + max(1, len(found))
    return ExpressionSyntaxError(
        "WF201", f"unexpected {found!r} in an expression", start, end, help
    )


def _position_of(error: UnexpectedInput) -> int:
    # At the end of the text lark has no position, whatever its annotation says.
    position: object = error.pos_in_stream
    return position if isinstance(position, int) else 0


def _text_of_literal(literal: str) -> str:
    r"""The text a quoted literal means; escapes are JSON's, and \\' in either kind of quotes."""
    body = literal[1:-1]
    if "\\" not in body:
        return body
    if literal[0] == "'":
        body = body.replace('\\"', '"').replace("\\'", "'").replace('"', '\\"')
    else:
        body = body.replace("\\'", "'")
    return str(json.loads(f'"{body}"', strict=False))


@v_args(inline=True)
class _TreeBuilder(Transformer[Token, Node]):
    """Builds nodes while the parser runs, so that nothing recurses over a deep tree."""

    def name(self, token: Token) -> Node:
        return Name(_start(token), _end(token), str(token))

    def number(self, token: Token) -> Node:
        text = str(token)
        value = int(text) if text.lstrip("-").isdigit() and len(text) < 400 else float(text)
        return Constant(_start(token), _end(token), value)

    def string(self, token: Token) -> Node:
        try:
            value = _text_of_literal(str(token))
        except ValueError:
            value = None
        if value is None:
            message = "an escape in the text is not one of JSON's"
            help = r"allowed are \n \t \" \' \\ \/ \b \f \r \uXXXX"
            raise ExpressionSyntaxError("WF201", message, _start(token), _end(token), help)
        return Constant(_start(token), _end(token), value)

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
