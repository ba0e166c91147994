"""Expressions over values that are known in part.

What is known is computed as a run computes it. Of the rest the shape is kept where a filter only
looks at shapes; otherwise what comes out is unknown, with a bound where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from flowforge.language.evaluation import evaluate_node
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
    Not,
    ObjectOf,
    Piped,
    children_of,
    names_of,
)
from flowforge.language.json_values import EvaluationError
from flowforge.language.token_meter import MeasuredNames
from flowforge.planning.quantity import UNBOUNDED, Quantity, exactly, total
from flowforge.planning.values import (
    MixedText,
    Pieces,
    PlanValue,
    Unknown,
    any_of,
    combined_key,
    is_known,
    joined_pieces,
    key_of,
    num_items_of,
    origins_of,
    pieces_of,
    plan_value,
    text_of_pieces,
    tokens_of,
)

if TYPE_CHECKING:
    from flowforge.language.expression_nodes import Node
    from flowforge.language.expressions import Expression
    from flowforge.language.program import JsonValue
    from flowforge.language.templates import Template
    from flowforge.language.token_meter import TokenMeter
    from flowforge.planning.values import CountTokens

PlanScope: TypeAlias = Mapping[str, PlanValue]
_FilterOnShapes: TypeAlias = Callable[[PlanValue, Sequence[PlanValue]], "PlanValue | None"]

_MOST_NUMBER_TOKENS = 32
_MOST_BOOLEAN_TOKENS = 5
_MOST_MARK_TOKENS = 12  # a line feed, a number, a stop and a space
_NUMBERS = frozenset(("len", "sum", "round", "number", "count", "tokens"))
# Of texts and lists these give no more than they were given.
_SHORTENING = frozenset(
    ("trim", "truncate", "compact", "unique", "sort", "reverse", "first", "last", "head", "tail",
     "where", "pluck", "keys", "values", "max", "min", "flatten", "chunks")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates expressions and texts. meter: counts tokens of texts that are known."""

    meter: TokenMeter

    @property
    def count(self) -> CountTokens:
        """Tokens of a text that is known."""
        return self.meter.count_tokens

    def value_of(self, expression: Expression, scope: PlanScope) -> PlanValue:
        """The value as far as it is known. Raises WorkflowError WF4xx as a run would."""
        try:
            return self._value(expression.node, scope)
        except EvaluationError as error:
            raise expression.error(error.code, error.message, error.help) from error

    def pieces_of(self, template: Template, scope: PlanScope) -> Pieces:
        """A text with its holes filled as far as they are known. Raises WorkflowError WF4xx."""
        pieces: list[str | Unknown] = []
        for part in template.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            value = self.value_of(part, scope)
            try:
                pieces += pieces_of(value)
            except EvaluationError as error:
                raise part.error(error.code, error.message, error.help) from error
        return joined_pieces(pieces)

    def _value(self, node: Node, scope: PlanScope) -> PlanValue:
        known: dict[str, JsonValue] = {}
        for name in {name.name for name in names_of(node)}:
            value = scope[name] if name in scope else _missing(name)
            if is_known(value):
                known[name] = value
            else:
                break
        else:
            return plan_value(evaluate_node(node, MeasuredNames(known, self.meter)))
        return self._open_value(node, scope)

    def _open_value(self, node: Node, scope: PlanScope) -> PlanValue:
        """The value of an expression that reads something unknown."""
        match node:
            case Name(name=name):
                return scope[name]
            case ListOf(items=items):
                return [self._value(item, scope) for item in items]
            case ObjectOf(fields=fields):
                return {name: self._value(value, scope) for name, value in fields}
            case FieldOf(field=field):
                return self._part(self._value(node.subject, scope), field)
            case ItemOf():
                return self._part(self._value(node.subject, scope), self._value(node.index, scope))
            case Piped():
                return self._piped(node, scope)
            case Coalesce():
                return self._coalesced(self._value(node.left, scope), node, scope)
            case Conditional():
                condition = self._value(node.condition, scope)
                chosen, otherwise = (
                    self._value(one, scope) for one in (node.chosen, node.otherwise)
                )
                if isinstance(condition, bool):
                    return chosen if condition else otherwise
                key = combined_key("if", [key_of(condition), key_of(chosen), key_of(otherwise)])
                return any_of(key, [chosen, otherwise], self.count)
            case Arithmetic() | Negative():
                return self._computed(node, scope, _MOST_NUMBER_TOKENS)
            case Comparison() | Not() | Logical():
                return self._computed(node, scope, _MOST_BOOLEAN_TOKENS)
            case Constant(value=value):
                return value

    def _computed(self, node: Node, scope: PlanScope, most: int) -> PlanValue:
        operands = [self._value(child, scope) for child in children_of(node)]
        if all(isinstance(one, bool | int | float | str) or one is None for one in operands):
            return plan_value(evaluate_node(_with_constants(node, operands), {}))
        operator = getattr(node, "operator", "")
        key = combined_key(f"{type(node).__name__}{operator}", [key_of(one) for one in operands])
        return Unknown(key, Quantity(1, most))

    def _part(self, subject: PlanValue, index: PlanValue) -> PlanValue:
        if isinstance(subject, dict) and isinstance(index, str):
            return subject.get(index)
        if isinstance(subject, list) and isinstance(index, int) and not isinstance(index, bool):
            if -len(subject) <= index < len(subject):
                return subject[index]
            message = f"index {index} is beyond the list, which has {len(subject)} items"
            raise EvaluationError("WF402", message)
        return self._reduced(combined_key("part", [key_of(subject), key_of(index)]), subject)

    def _reduced(self, key: str, *sources: PlanValue) -> Unknown:
        """Some part of the sources, or of their text."""
        most = total(tokens_of(source, self.count) for source in sources).most
        num_items = Quantity(0, total(num_items_of(source) for source in sources).most)
        if any(isinstance(source, Unknown) for source in sources):
            num_items = UNBOUNDED
        origins = frozenset[str]().union(*map(origins_of, sources))
        return Unknown(key, Quantity(0, most), num_items, origins)

    def _coalesced(self, left: PlanValue, node: Coalesce, scope: PlanScope) -> PlanValue:
        if left is None:
            return self._value(node.right, scope)
        if not isinstance(left, Unknown):
            return left
        right = self._value(node.right, scope)
        key = combined_key("??", [key_of(left), key_of(right)])
        return any_of(key, [left, right], self.count)

    def _piped(self, node: Piped, scope: PlanScope) -> PlanValue:
        subject = self._value(node.subject, scope)
        arguments = [self._value(argument, scope) for argument in node.arguments]
        on_shapes = _FILTERS_ON_SHAPES.get(node.filter)
        if on_shapes is not None:
            shaped = on_shapes(subject, arguments)
            if shaped is not None:
                return shaped
        keys = [key_of(subject), *map(key_of, arguments)]
        key = combined_key(f"|{node.filter}", keys)
        if node.filter == "sort" and isinstance(subject, list):
            return [any_of(f"{key}[{idx}]", subject, self.count) for idx in range(len(subject))]
        if node.filter in _NUMBERS:
            return Unknown(key, Quantity(1, _MOST_NUMBER_TOKENS))
        if node.filter in _SHORTENING:
            return self._reduced(key, subject)
        if node.filter == "truncate_tokens":
            return _at_most(self._reduced(key, subject), arguments[0])
        if node.filter in ("default", "json", "text"):
            pieces = [subject, *arguments]
            doubled = total(tokens_of(one, self.count) for one in [*pieces, *pieces]) + exactly(2)
            origins = frozenset[str]().union(*map(origins_of, pieces))
            return Unknown(key, Quantity(0, doubled.most), UNBOUNDED, origins)
        if node.filter == "join" and isinstance(subject, Unknown):
            separator = tokens_of(arguments[0], self.count) if arguments else exactly(0)
            most = (subject.tokens + separator.times(subject.num_items)).most
            return Unknown(key, Quantity(0, most), UNBOUNDED, subject.origins)
        if node.filter in ("bullets", "numbered") and isinstance(subject, Unknown):
            marks = exactly(_MOST_MARK_TOKENS).times(subject.num_items)
            most = (subject.tokens + subject.tokens + marks).most
            return Unknown(key, Quantity(0, most), UNBOUNDED, subject.origins)
        origins = frozenset[str]().union(*map(origins_of, [subject, *arguments]))
        return Unknown(key, UNBOUNDED, UNBOUNDED, origins)


def _at_most(text: Unknown, num_tokens: PlanValue) -> Unknown:
    """A text that was cut. What is counted is its own tokens, whatever stands around it."""
    if not isinstance(num_tokens, int):
        return text
    most = num_tokens if text.tokens.most is None else min(num_tokens, text.tokens.most)
    return replace(text, tokens=Quantity(0, most))


def _missing(name: str) -> NoReturn:
    raise EvaluationError("WF404", f"{name!r} has no value here")


def _with_constants(node: Node, operands: Sequence[PlanValue]) -> Node:
    constants = [Constant(0, 0, _scalar(operand)) for operand in operands]
    match node:
        case Arithmetic():
            return Arithmetic(node.start, node.end, node.operator, *constants)
        case Comparison():
            return Comparison(node.start, node.end, node.operator, *constants)
        case Logical():
            return Logical(node.start, node.end, node.operator, *constants)
        case Negative():
            return Negative(node.start, node.end, *constants)
        case _:
            return Not(node.start, node.end, *constants)


def _scalar(operand: PlanValue) -> bool | int | float | str | None:
    assert operand is None or isinstance(operand, bool | int | float | str)
    return operand


def _list_filter(apply: Callable[[list[PlanValue]], PlanValue]) -> _FilterOnShapes:
    def on_shapes(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
        del arguments
        return apply(subject) if isinstance(subject, list) else None

    return on_shapes


def _join(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    separator = arguments[0] if arguments else ""
    if not isinstance(subject, list) or not isinstance(separator, str):
        return None
    pieces: list[str | Unknown] = []
    for idx, item in enumerate(subject):
        pieces += [*([separator] if idx else []), *pieces_of(item)]
    return text_of_pieces(joined_pieces(pieces))


def _marked(mark: Callable[[int], str]) -> _FilterOnShapes:
    """Bullets and numbers; further lines are indented, which doubles a text at worst."""

    def on_shapes(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
        del arguments
        if not isinstance(subject, list):
            return None
        pieces: list[str | Unknown] = []
        for idx, item in enumerate(subject):
            pieces.append(("\n" if idx else "") + mark(idx))
            pieces += [_indented(piece, len(mark(idx))) for piece in pieces_of(item)]
        return text_of_pieces(joined_pieces(pieces))

    return on_shapes


def _indented(piece: str | Unknown, width: int) -> str | Unknown:
    if isinstance(piece, str):
        return piece.replace("\n", "\n" + " " * width)
    most = (piece.tokens + piece.tokens).most
    return Unknown(
        combined_key("indented", [piece.key]),
        Quantity(piece.tokens.least, most),
        UNBOUNDED,
        piece.origins,
    )


def _head(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    count = arguments[0]
    return subject[:count] if isinstance(subject, list) and isinstance(count, int) else None


def _tail(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    count = arguments[0]
    if not isinstance(subject, list) or not isinstance(count, int):
        return None
    return subject[max(0, len(subject) - count) :]


def _append(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    return [*subject, arguments[0]] if isinstance(subject, list) else None


def _concat(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    other = arguments[0]
    if not isinstance(subject, list) or not isinstance(other, list):
        return None
    return [*subject, *other]


def _flatten(subject: PlanValue, _arguments: Sequence[PlanValue]) -> PlanValue | None:
    if not isinstance(subject, list):
        return None
    lists = [item for item in subject if isinstance(item, list)]
    return [one for item in lists for one in item] if len(lists) == len(subject) else None


def _chunks(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    size = arguments[0]
    if not isinstance(subject, list) or not isinstance(size, int) or size < 1:
        return None
    return [subject[start : start + size] for start in range(0, len(subject), size)]


def _zip(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    other = arguments[0]
    if not isinstance(subject, list) or not isinstance(other, list):
        return None
    return [[item, one] for item, one in zip(subject, other, strict=False)]


def _items(subject: PlanValue, _arguments: Sequence[PlanValue]) -> PlanValue | None:
    if not isinstance(subject, dict):
        return None
    return [{"key": key, "value": one} for key, one in subject.items()]


def _len(subject: PlanValue, _arguments: Sequence[PlanValue]) -> PlanValue | None:
    return len(subject) if isinstance(subject, list | dict) else None


def _keys(subject: PlanValue, _arguments: Sequence[PlanValue]) -> PlanValue | None:
    return [*subject] if isinstance(subject, dict) else None


def _values(subject: PlanValue, _arguments: Sequence[PlanValue]) -> PlanValue | None:
    return [*subject.values()] if isinstance(subject, dict) else None


def _pluck(subject: PlanValue, arguments: Sequence[PlanValue]) -> PlanValue | None:
    name = arguments[0]
    if not isinstance(subject, list) or not isinstance(name, str):
        return None
    found = [item.get(name) for item in subject if isinstance(item, dict)]
    return found if len(found) == len(subject) else None


def _text(subject: PlanValue, _arguments: Sequence[PlanValue]) -> PlanValue | None:
    return subject if isinstance(subject, MixedText) else None


_FILTERS_ON_SHAPES: Mapping[str, _FilterOnShapes] = {
    "join": _join,
    "bullets": _marked(lambda _: "- "),
    "numbered": _marked(lambda idx: f"{idx + 1}. "),
    "first": _list_filter(lambda items: items[0] if items else None),
    "last": _list_filter(lambda items: items[-1] if items else None),
    "reverse": _list_filter(lambda items: items[::-1]),
    "head": _head,
    "tail": _tail,
    "append": _append,
    "concat": _concat,
    "flatten": _flatten,
    "chunks": _chunks,
    "zip": _zip,
    "items": _items,
    "len": _len,
    "keys": _keys,
    "values": _values,
    "pluck": _pluck,
    "text": _text,
}
