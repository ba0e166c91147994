"""How much a model can say under a constraint, and what its value looks like before it is there.

Bounds are in bytes where tokens are not known: a token is a byte at least.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.language.answer_bounds import width_of_regex
from flowforge.language.json_values import json_text
from flowforge.planning.quantity import Quantity, exactly, longest, one_of, total
from flowforge.planning.values import PlanValue, Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.language.program import Gen, JsonValue, WrittenTurn
    from flowforge.planning.values import CountTokens

_Schema: TypeAlias = "JsonValue | Mapping[str, JsonValue]"

_MOST_BYTES_A_CHAR = 6  # \u0001; what lies beyond ASCII has four at most
_BOOLEAN_BYTES = Quantity(4, 5)
_MOST_DEPTH = 16
_MOST_LISTED = 200
_MOST_MARK_TOKENS = 64  # around thoughts, where the marks are no tokens of their own
_UNKNOWN_BYTES = Quantity(1, None)
_COMPLICATING = ("anyOf", "oneOf", "allOf", "$ref", "not", "if")


@dataclass(frozen=True, slots=True)
class AnswerSize:
    """generated: output tokens. pending: how many at the end of the turn have no KV yet.

    The turn's closing token counts as pending, whether the model wrote it or not.
    """

    generated: Quantity
    pending: Quantity


def size_of_answer(written: Gen | WrittenTurn, room: int) -> AnswerSize:
    """Tokens of one answer, and of the thoughts before it.

    room: tokens that the context has left for both, at most.
    """
    if written.options.scoring == "exact" and written.choice is not None:
        # All of it has been weighed with its end, and some of it may be read again.
        most = max(len(choice.encode()) for choice in written.choice)
        return AnswerSize(exactly(0), Quantity(0, most + 1))
    size = _size_without_thoughts(written, room)
    most = most_thoughts(written)
    if most == 0:
        return size
    generated = (size.generated + Quantity(1, most)).at_most(room)
    return AnswerSize(generated, size.pending)


def most_thoughts(written: Gen | WrittenTurn) -> int:
    """Tokens before the answer, at most; 0 where the model does not think."""
    budget = written.options.think
    return 0 if budget is None else budget + _MOST_MARK_TOKENS


def _size_without_thoughts(written: Gen | WrittenTurn, room: int) -> AnswerSize:
    limit = room if written.sampling.max_tokens is None else written.sampling.max_tokens
    if written.choice is not None:
        in_bytes = longest(exactly(len(choice.encode())) for choice in written.choice)
        generated = Quantity(1, in_bytes.most).at_most(limit)
        return AnswerSize(generated, Quantity(2, (generated.most or 0) + 1))
    if written.json_schema is not None:
        most = bytes_of_schema(written.json_schema).most
        generated = Quantity(1, most).at_most(limit)
        forced = _forced_bytes(written.json_schema)
        forced = limit if forced is None else min(forced + 1, limit)
        return AnswerSize(generated, Quantity(1, forced + 1))
    if written.regex is not None:
        generated = Quantity(1, bytes_of_regex(written.regex).most).at_most(limit)
        return AnswerSize(generated, Quantity(1, (generated.most or 0) + 1))
    if written.grammar is not None:
        # A grammar may force any of its tokens.
        return AnswerSize(Quantity(1, limit), Quantity(1, limit + 1))
    # Cut off, the last token has no KV, and the one that closes the turn comes on top.
    return AnswerSize(Quantity(1, limit), Quantity(1, 2))


def value_of_answer(
    written: Gen | WrittenTurn, path: str, generated: Quantity, count: CountTokens
) -> PlanValue:
    """What is known of the value: its fields, and its items where their number is fixed."""
    tokens = Quantity(0, generated.most)
    if written.choice is not None:
        listed = one_of(exactly(count(choice)) for choice in written.choice)
        return Unknown(path, listed, exactly(0), frozenset({path}))
    if written.grammar is not None and written.grammar.has_tree:
        # A tree says more than its text, by how much depends on the grammar.
        return Unknown(path, Quantity(0, None), exactly(0), frozenset({path}))
    if written.json_schema is None:
        return Unknown(path, tokens, exactly(0), frozenset({path}))
    return _value_of_schema(written.json_schema, path, tokens, frozenset({path}), 0)


def bytes_of_schema(schema: _Schema, depth: int = 0) -> Quantity:
    """Bytes of the JSON that a schema allows, written without white space."""
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return _UNKNOWN_BYTES
    if "const" in schema:
        return exactly(len(_compact(schema["const"])))
    listed = schema.get("enum")
    if isinstance(listed, list) and listed:
        return one_of(exactly(len(_compact(value))) for value in listed)
    for word in ("anyOf", "oneOf"):
        branches = schema.get(word)
        if isinstance(branches, list) and branches:
            return one_of(bytes_of_schema(branch, depth + 1) for branch in branches)
    if any(word in schema for word in _COMPLICATING):
        return _UNKNOWN_BYTES
    match schema.get("type"):
        case "string":
            return _bytes_of_string(schema) + exactly(2)
        case "boolean":
            return _BOOLEAN_BYTES
        case "null":
            return exactly(4)
        case "array":
            return _bytes_of_array(schema, depth)
        case "object":
            return _bytes_of_object(schema, depth)
        case _:
            return _UNKNOWN_BYTES


def bytes_of_regex(regex: str) -> Quantity:
    """Bytes of a text that matches all of a regex."""
    width = width_of_regex(regex)
    if width is None:
        return _UNKNOWN_BYTES
    least, most = width
    if most is None:
        return Quantity(least, None)
    is_ascii = regex.isascii() and not re.search(r"\\[^.dt]|\.|\[\^", regex)
    return Quantity(least, most * (1 if is_ascii else _MOST_BYTES_A_CHAR))


def _value_of_schema(
    schema: _Schema, key: str, limit: Quantity, origins: frozenset[str], depth: int
) -> PlanValue:
    tokens = Quantity(0, bytes_of_schema(schema).most).at_most(limit.most)
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return Unknown(key, tokens, origins=origins)
    if any(word in schema for word in (*_COMPLICATING, "enum", "const")):
        return Unknown(key, tokens, origins=origins)
    match schema.get("type"):
        case "object":
            properties, required = schema.get("properties"), schema.get("required")
            names = required if isinstance(required, list) else []
            if not isinstance(properties, dict) or not all(name in names for name in properties):
                return Unknown(key, tokens, exactly(0), origins)
            return {
                name: _value_of_schema(part, f"{key}.{name}", limit, origins, depth + 1)
                for name, part in properties.items()
            }
        case "array":
            items = _num_items(schema)
            if not items.is_exact or items.least > _MOST_LISTED:
                return Unknown(key, tokens, items.at_most(limit.most), origins)
            return [
                _value_of_schema(schema.get("items"), f"{key}[{idx}]", limit, origins, depth + 1)
                for idx in range(items.least)
            ]
        case "string":
            # The text is read back without its quotes, and may be empty.
            return Unknown(key, _bytes_of_string(schema).at_most(limit.most), exactly(0), origins)
        case _:
            return Unknown(key, tokens, exactly(0), origins)


def _bytes_of_string(schema: Mapping[str, JsonValue]) -> Quantity:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern.startswith("^") and pattern.endswith("$"):
        return Quantity(0, bytes_of_regex(pattern).most)
    most = schema.get("maxLength")
    return Quantity(0, most * _MOST_BYTES_A_CHAR if isinstance(most, int) else None)


def _num_items(schema: Mapping[str, JsonValue]) -> Quantity:
    least, most = schema.get("minItems"), schema.get("maxItems")
    return Quantity(least if isinstance(least, int) else 0, most if isinstance(most, int) else None)


def _bytes_of_array(schema: Mapping[str, JsonValue], depth: int) -> Quantity:
    item = bytes_of_schema(schema.get("items"), depth + 1) + exactly(1)
    return item.times(_num_items(schema)) + exactly(2)


def _bytes_of_object(schema: Mapping[str, JsonValue], depth: int) -> Quantity:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties", False) is not False:
        return _UNKNOWN_BYTES
    fields = total(
        bytes_of_schema(part, depth + 1) + exactly(len(_compact(name)) + 2)
        for name, part in properties.items()
    )
    return Quantity(2, (fields + exactly(2)).most)


def _forced_bytes(schema: _Schema, depth: int = 0) -> int | None:
    """Bytes at the end of the JSON that follow from what was said before; None if unknown.

    A value that is one of a few is taken to be forced as a whole; what stands before a free text
    or number never is.
    """
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return None
    if "const" in schema or "enum" in schema:
        return bytes_of_schema(schema).most
    if any(word in schema for word in _COMPLICATING) or "pattern" in schema:
        return bytes_of_schema(schema).most
    match schema.get("type"):
        case "string":
            return 1
        case "integer" | "number":
            return 0
        case "boolean" | "null":
            return 5
        case "array":
            return _forced_at_end([schema.get("items")], depth, schema)
        case "object":
            properties = schema.get("properties")
            parts = list(properties.values()) if isinstance(properties, dict) else [None]
            return _forced_at_end(parts, depth, schema)
        case _:
            return None


def _forced_at_end(
    parts: Sequence[JsonValue], depth: int, schema: Mapping[str, JsonValue]
) -> int | None:
    """Of an object or array: any part may be the last, and nothing is forced further back."""
    if any(isinstance(part, dict) and "const" in part for part in parts):
        return bytes_of_schema(schema).most
    forced = [_forced_bytes(part, depth + 1) for part in parts]
    if None in forced:
        return None
    keys = [len(_compact(name)) + 2 for name in _names(schema)]
    return max((one or 0 for one in forced), default=0) + max(keys, default=0) + 2


def _names(schema: Mapping[str, JsonValue]) -> list[str]:
    properties = schema.get("properties")
    return [*properties] if isinstance(properties, dict) else []


def _compact(value: JsonValue) -> bytes:
    # Spaces after commas and colons are counted too: an upper bound.
    return json_text(value).encode()
