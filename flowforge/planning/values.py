"""Values before the run: JSON as far as it is known, with what will be written left open.

An `Unknown` stands where a model, a tool or a person will have put something. It has a key: two
unknowns of one key will be equal, whatever they turn out to be. A text that holds one is a
`MixedText`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

from flowforge.language.json_values import text_of_value
from flowforge.planning.quantity import UNBOUNDED, Quantity, exactly, one_of, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flowforge.language.program import JsonValue

    CountTokens: TypeAlias = Callable[[str], int]

# Tokens more, or fewer, than the pieces of a text have apart, for each place where two meet. No
# tokenizer promises a number: of 100,000 texts cut anywhere, SmolLM2's made up to 4 more, 3 fewer.
MOST_AT_SEAM = 4


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only the run gives.

    tokens: of its text. num_items: how many it has, if it is a list. origins: paths of the steps
    whose model wrote it, or a part of it.
    """

    key: str
    tokens: Quantity = UNBOUNDED
    num_items: Quantity = UNBOUNDED
    origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MixedText:
    """A text in pieces, some of them unknown."""

    pieces: tuple[str | Unknown, ...]


PlanValue: TypeAlias = (
    "bool | int | float | str | list[PlanValue] | dict[str, PlanValue] | Unknown | MixedText | None"
)
Pieces: TypeAlias = "tuple[str | Unknown, ...]"


def plan_value(value: JsonValue) -> PlanValue:
    """A value that is known. Nobody changes it: a cast spares the copy that invariance wants."""
    return cast("PlanValue", value)


def is_known(value: PlanValue) -> TypeGuard[JsonValue]:
    """Whether nothing in the value is left open."""
    return next(unknowns_of(value), None) is None


def unknowns_of(value: PlanValue) -> Iterator[Unknown]:
    """Everything that is left open in it."""
    match value:
        case Unknown():
            yield value
        case MixedText(pieces):
            yield from (piece for piece in pieces if isinstance(piece, Unknown))
        case list():
            for item in value:
                yield from unknowns_of(item)
        case dict():
            for item in value.values():
                yield from unknowns_of(item)
        case _:
            pass


def origins_of(value: PlanValue) -> frozenset[str]:
    """Whose words the value holds."""
    return frozenset[str]().union(*(unknown.origins for unknown in unknowns_of(value)))


def key_of(value: PlanValue) -> str:
    """Equal for values that will be equal; short."""
    match value:
        case Unknown(key=key):
            return key
        case MixedText(pieces):
            return combined_key("text", [key_of(piece) for piece in pieces])
        case list():
            return combined_key("list", [key_of(item) for item in value])
        case dict():
            keys = [part for name, item in value.items() for part in (name, key_of(item))]
            return combined_key("object", keys)
        case _:
            return json.dumps(value)


def combined_key(word: str, keys: Sequence[str]) -> str:
    """The key of what is made, in the way that `word` says, of values with these keys."""
    digest = blake2b(json.dumps([word, *keys]).encode(), digest_size=16)
    return f"{word}:{digest.hexdigest()}"


def pieces_of(value: PlanValue) -> Pieces:
    """How the value is written into text. Raises EvaluationError as a run would, for null."""
    match value:
        case Unknown():
            return (value,)
        case MixedText(pieces):
            return pieces
        case _:
            if is_known(value):
                return (text_of_value(value),)
            return joined_pieces(_json_pieces(value))


def joined_pieces(pieces: Sequence[str | Unknown]) -> Pieces:
    """The same with neighbouring texts in one, and empty ones gone."""
    joined: list[str | Unknown] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return tuple(joined)


def text_of_pieces(pieces: Pieces) -> PlanValue:
    """A plain text where all is known."""
    if any(isinstance(piece, Unknown) for piece in pieces):
        return MixedText(pieces)
    return "".join(piece for piece in pieces if isinstance(piece, str))


def tokens_of(value: PlanValue, count: CountTokens) -> Quantity:
    """Tokens of the value's text; null has none."""
    if value is None:
        return exactly(0)
    return tokens_of_pieces(pieces_of(value), count)


def tokens_of_pieces(pieces: Pieces, count: CountTokens) -> Quantity:
    """Tokens of a text in pieces: those of its pieces, but for what happens at their seams."""
    if all(isinstance(piece, str) for piece in pieces):
        return exactly(count("".join(piece for piece in pieces if isinstance(piece, str))))
    whole = total(
        exactly(count(piece)) if isinstance(piece, str) else piece.tokens for piece in pieces
    )
    at_seams = MOST_AT_SEAM * (len(pieces) - 1)
    most = None if whole.most is None else whole.most + at_seams
    return Quantity(max(0, whole.least - at_seams), most)


def any_of(key: str, values: Sequence[PlanValue], count: CountTokens) -> PlanValue:
    """One of several values, which one is not known; of one shape if all have it.

    At least one is given. key: names the choice.
    """
    if len({key_of(value) for value in values}) == 1:
        return values[0]
    shaped = _any_of_shape(key, values, count)
    if shaped is not None:
        return shaped
    return Unknown(
        key,
        one_of(tokens_of(value, count) for value in values),
        one_of(num_items_of(value) for value in values),
        frozenset[str]().union(*map(origins_of, values)),
    )


def _any_of_shape(key: str, values: Sequence[PlanValue], count: CountTokens) -> PlanValue | None:
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values) and len({tuple(one) for one in objects}) == 1:
        return {
            name: any_of(f"{key}.{name}", [one[name] for one in objects], count)
            for name in objects[0]
        }
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) and len({len(one) for one in lists}) == 1:
        return [
            any_of(f"{key}[{idx}]", items, count)
            for idx, items in enumerate(zip(*lists, strict=True))
        ]
    return None


def num_items_of(value: PlanValue) -> Quantity:
    """Items of a list; of anything else there are none."""
    if isinstance(value, Unknown):
        return value.num_items
    return exactly(len(value) if isinstance(value, list) else 0)


def _json_pieces(value: PlanValue) -> list[str | Unknown]:
    match value:
        case Unknown(key, tokens, num_items, origins):
            # Quotes, and at worst a backslash before every token.
            quoted = Quantity(tokens.least, (tokens + tokens + exactly(2)).most)
            return [Unknown(combined_key("json", [key]), quoted, num_items, origins)]
        case MixedText(pieces):
            inside = [part for piece in pieces for part in _json_pieces_of_piece(piece)]
            return ['"', *inside, '"']
        case list():
            parts = [_json_pieces(item) for item in value]
            return ["[", *_separated(parts), "]"]
        case dict():
            named = [[f"{json.dumps(name)}: ", *_json_pieces(item)] for name, item in value.items()]
            return ["{", *_separated(named), "}"]
        case _:
            return [json.dumps(value, ensure_ascii=False)]


def _json_pieces_of_piece(piece: str | Unknown) -> list[str | Unknown]:
    if isinstance(piece, Unknown):
        return _json_pieces(piece)
    return [json.dumps(piece, ensure_ascii=False)[1:-1]]


def _separated(parts: Sequence[list[str | Unknown]]) -> list[str | Unknown]:
    separated: list[str | Unknown] = []
    for idx, part in enumerate(parts):
        separated += part if idx == 0 else [", ", *part]
    return separated
