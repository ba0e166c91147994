"""Expression text to syntax tree.

The language is what `expression.lark` says, and tests hold this parser to that grammar. It is
written by hand, by binding powers (Pratt, "Top Down Operator Precedence", 1973): a check of
hundreds of steps has hundreds of expressions, and making a parser from the grammar takes longer.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

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
from flowforge.language.expression_tokens import RESERVED_WORDS, Token, token_at
from flowforge.language.json_values import problem_with_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.expression_nodes import (
        ArithmeticOperator,
        ComparisonOperator,
        LogicalOperator,
    )

__all__ = [
    "MAX_EXPRESSION_CHARS",
    "MAX_EXPRESSION_DEPTH",
    "RESERVED_WORDS",
    "ExpressionSyntaxError",
    "parse_expression",
]

MAX_EXPRESSION_CHARS = 4_000
MAX_EXPRESSION_DEPTH = 64
# How tightly each operator binds; a right side is read with the power behind it.
_IF, _OR, _AND, _NOT, _COMPARISON, _COALESCE, _SUM, _PRODUCT, _SIGN, _PIPE, _POSTFIX = range(1, 12)
_POWERS: Mapping[str, int] = {
    "if": _IF, "or": _OR, "and": _AND, "??": _COALESCE, "|": _PIPE, ".": _POSTFIX, "[": _POSTFIX,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in", "not"), _COMPARISON),
    **dict.fromkeys("+-", _SUM), **dict.fromkeys("*/%", _PRODUCT),
}  # fmt: skip
_COMPARISONS: Mapping[str, ComparisonOperator] = {
    "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "in": "in",
}  # fmt: skip
_LOGICALS: Mapping[str, tuple[LogicalOperator, int]] = {"or": ("or", _AND), "and": ("and", _NOT)}
_ARITHMETIC: Mapping[str, tuple[ArithmeticOperator, int]] = {
    "+": ("+", _PRODUCT), "-": ("-", _PRODUCT),
    "*": ("*", _SIGN), "/": ("/", _SIGN), "%": ("%", _SIGN),
}  # fmt: skip
_PREFIXES: Mapping[str, int] = {"not": _NOT, "-": _SIGN}
_LITERALS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_HINTS = {
    "=": "'==' compares",
    "&": "write 'and'",
    "!": "write 'not', or '!=' to compare",
    "{": "an expression holds no '{': quote texts, and write objects in YAML",
    "~": "texts are joined by writing them side by side, or with 'join'",
    ":": "there are no slices: head, tail and truncate cut",
    "for": "'for' is a step; pluck and where work on lists",
    "is": "'==' and '!=' compare, also with null",
    "*": "there are no powers",
    "/": "'/' gives a fraction, which 'round' makes whole",
    "`": "quote texts with ' or \"",
    '"': "the text is not closed",
    "'": "the text is not closed",
    "(": "there are no calls; filters are written value | filter(…)",
    ".": "a field's name follows '.', and a list's item is written list[0]",
    "?": "'??' gives a value for null; a choice is written a if c else b",
}


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
    node = _Parser(text).whole()
    if depth_of(node) > MAX_EXPRESSION_DEPTH:
        raise _too_deep(text)
    return node


class _Parser:
    """Reads one text from left to right; `_token` is the next token, not yet used."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self._token = token_at(text, 0, begins_value=True)

    def whole(self) -> Node:
        node = self._expression(_IF)
        if self._token.kind != "end":
            raise self._unexpected(self._token)
        return node

    def _take(self, *, begins_value: bool = False) -> Token:
        """The next token; the one behind it is read as the beginning of a value, or not."""
        token = self._token
        self._token = token_at(self._text, token.end, begins_value=begins_value)
        return token

    def _is(self, text: str) -> bool:
        return self._token.text == text and self._token.kind in ("symbol", "word")

    def _expect(self, text: str, *, begins_value: bool = False) -> Token:
        if not self._is(text):
            raise self._unexpected(self._token)
        return self._take(begins_value=begins_value)

    def _expression(self, power: int) -> Node:
        """The longest expression of operators that bind at least so tightly."""
        self._depth += 1
        if self._depth > MAX_EXPRESSION_DEPTH:
            raise _too_deep(self._text)
        first = self._token
        node = self._operand(power)
        # What an operator has made is only taken by those that bind no tighter: no `a | f.x`.
        most = _PREFIXES.get(first.text, _POSTFIX)
        while self._token.kind in ("symbol", "word"):
            found = _POWERS.get(self._token.text, 0)
            if found < power or found == 0 or found > most:
                break
            node = self._extended(node)
            most = found
        self._depth -= 1
        return node

    def _operand(self, power: int) -> Node:
        token = self._token
        match token.kind:
            case "name":
                self._take()
                return Name(token.start, token.end, token.text)
            case "number":
                self._take()
                return Constant(token.start, token.end, _number(token.text))
            case "string":
                self._take()
                return Constant(token.start, token.end, _text_of_token(token))
            case "word" if token.text in _LITERALS:
                self._take()
                return Constant(token.start, token.end, _LITERALS[token.text])
            case "word" if token.text == "not" and power <= _NOT:
                self._take(begins_value=True)
                operand = self._expression(_NOT)
                return Not(token.start, operand.end, operand)
            case "symbol" if token.text == "-" and power <= _SIGN:
                self._take(begins_value=True)
                operand = self._expression(_SIGN)
                return Negative(token.start, operand.end, operand)
            case "symbol" if token.text == "(":
                self._take(begins_value=True)
                node = self._expression(_IF)
                return replace(node, start=token.start, end=self._expect(")").end)
            case "symbol" if token.text == "[":
                self._take(begins_value=True)
                items, end = self._listed("]")
                return ListOf(token.start, end, items)
            case _:
                raise self._unexpected(token)

    def _extended(self, left: Node) -> Node:
        """`left` with the operator that follows it, and what belongs to that."""
        symbol = self._token.text
        if symbol == ".":
            self._take()
            return self._field(left)
        if symbol == "[":
            self._take(begins_value=True)
            index = self._expression(_IF)
            return ItemOf(left.start, self._expect("]").end, left, index)
        if symbol == "|":
            self._take()
            return self._piped(left)
        operator = self._take(begins_value=True)
        if symbol in _ARITHMETIC:
            sign, power = _ARITHMETIC[symbol]
            right = self._expression(power)
            return Arithmetic(left.start, right.end, sign, left, right)
        if symbol == "??":
            right = self._expression(_COALESCE)
            return Coalesce(left.start, right.end, left, right)
        if symbol in _LOGICALS:
            word, power = _LOGICALS[symbol]
            right = self._expression(power)
            return Logical(left.start, right.end, word, left, right)
        if symbol == "if":
            condition = self._expression(_OR)
            self._expect("else", begins_value=True)
            otherwise = self._expression(_IF)
            return Conditional(left.start, otherwise.end, left, condition, otherwise)
        return self._comparison(left, operator)

    def _comparison(self, left: Node, operator: Token) -> Node:
        comparison: ComparisonOperator = "not in"
        if operator.text == "not":
            self._expect("in", begins_value=True)
        else:
            comparison = _COMPARISONS[operator.text]
        right = self._expression(_COALESCE)
        if self._token.kind != "end" and _POWERS.get(self._token.text) == _COMPARISON:
            raise self._unexpected(self._token)
        return Comparison(left.start, right.end, comparison, left, right)

    def _field(self, subject: Node) -> Node:
        if self._token.kind not in ("name", "word"):
            raise self._unexpected(self._token)
        name = self._take()
        return FieldOf(subject.start, name.end, subject, name.text, name.start)

    def _piped(self, subject: Node) -> Node:
        if self._token.kind != "name":
            raise self._unexpected(self._token)
        name = self._take()
        arguments: tuple[Node, ...] = ()
        end = name.end
        if self._is("("):
            self._take(begins_value=True)
            arguments, end = self._listed(")")
        return Piped(subject.start, end, subject, name.text, name.start, arguments)

    def _listed(self, closing: str) -> tuple[tuple[Node, ...], int]:
        """Expressions between commas, up to a closing bracket, and the position behind that."""
        items: list[Node] = []
        while items or not self._is(closing):
            items.append(self._expression(_IF))
            if not self._is(","):
                break
            self._take(begins_value=True)
        return tuple(items), self._expect(closing).end

    def _unexpected(self, token: Token) -> ExpressionSyntaxError:
        if token.kind == "end":
            end = len(self._text.rstrip())
            message = "the expression ends too early"
            return ExpressionSyntaxError(
                "WF201", message, max(end - 1, 0), end, "something is missing"
            )
        is_chained = token.kind != "unknown" and _POWERS.get(token.text) == _COMPARISON
        help = "compare twice and join with 'and'" if is_chained else _HINTS.get(token.text)
        if token.kind == "number" and help is None:
            help = "an operator is missing before the number; an item of a list is written list[0]"
        if token.kind == "string":
            help = "an operator is missing before the text"
        message = f"unexpected {token.text!r} in an expression"
        return ExpressionSyntaxError("WF201", message, token.start, token.end, help)


def _too_deep(text: str) -> ExpressionSyntaxError:
    message = f"the expression is nested deeper than {MAX_EXPRESSION_DEPTH} levels"
    return ExpressionSyntaxError("WF209", message, 0, len(text), "split it over several steps")


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() and len(text) < 400 else float(text)


def _text_of_token(token: Token) -> str:
    try:
        text = _text_of_literal(token.text)
    except ValueError as error:
        message = "an escape in the text is not one of JSON's"
        help = r"allowed are \n \t \" \' \\ \/ \b \f \r \uXXXX"
        raise ExpressionSyntaxError("WF201", message, token.start, token.end, help) from error
    problem = problem_with_text(text)
    if problem is not None:
        message = f"an escape names half a character: {problem}"
        help = "write the character itself, or both halves of it"
        raise ExpressionSyntaxError("WF201", message, token.start, token.end, help)
    return text


def _text_of_literal(literal: str) -> str:
    r"""The text a quoted literal means; escapes are JSON's, and \' in either kind of quotes."""
    body = literal[1:-1]
    if "\\" not in body:
        return body
    if literal[0] == "'":
        body = body.replace('\\"', '"').replace("\\'", "'").replace('"', '\\"')
    else:
        body = body.replace("\\'", "'")
    return str(json.loads(f'"{body}"', strict=False))
