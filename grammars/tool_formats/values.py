"""What a JSON value looks like in a format's literals: the rules that admit it under its schema.

JSON itself is left to the mask's own JSON. Other syntaxes are written out here; what of a schema
cannot be said in them raises `NotEnforceable`, and it is the caller who decides what follows.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from flowforge.grammars.lowering.values import listed_values
from flowforge.grammars.tool_formats.lark_text import ANY_TEXT, escaped, quoted, regex
from flowforge.grammars.tool_formats.literals import write_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.tool_formats.description import LiteralSyntax
    from flowforge.grammars.tool_formats.lark_text import LarkText

    Schema = JsonValue

# Keywords that ask for nothing, and those that hold what others refer to.
_ANNOTATIONS: Final = frozenset(
    {
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
_OF_TYPE: Final = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
}
_OF_TYPE_ALL: Final = frozenset().union(*_OF_TYPE.values())
_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_MONTHS: Final = (
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
)
_DATE: Final = f"[0-9]{{3}}[1-9]-(?:{_MONTHS}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# Where a text is raw and the mask's own JSON cannot be asked; each is part of what the judge takes.
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": r"[a-zA-Z0-9_]+(?:[.+-][a-zA-Z0-9_]+)*@[a-zA-Z0-9]+(?:[.-][a-zA-Z0-9]+)*\.[a-z]{2,8}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "uri": r"https?://[a-zA-Z0-9]+(?:[.-][a-zA-Z0-9]+)*(?:/[a-zA-Z0-9._~-]*)*",
}


class NotEnforceable(Exception):
    """A part of a schema that a syntax cannot hold a model to; the text says which."""


class ValueRules:
    """The rules of one schema's values. root: the schema that references are resolved in."""

    def __init__(
        self, lark: LarkText, syntax: LiteralSyntax, root: Mapping[str, JsonValue]
    ) -> None:
        self._lark = lark
        self._syntax = syntax
        self._root = root
        self._by_reference: dict[str, str] = {}
        self._any: str | None = None

    def value(self, schema: Schema) -> str:
        """An expression for the values of a schema. Raises NotEnforceable."""
        if self._syntax.is_json:
            return self._lark.json(self.with_definitions(schema))
        return self._lark.rule("value", self._alternatives(schema))

    def with_definitions(self, schema: Schema) -> Schema:
        """The schema with the root's named schemas, which references in it may name."""
        named = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return {**schema, **named} if isinstance(schema, dict) else schema

    def any_value(self) -> str:
        """An expression for every value that the syntax can write."""
        if self._syntax.is_json:
            return self._lark.json({})
        if self._any is None:
            self._any = self._lark.open_rule("any")
            pair = f"{self._key_text()} {self._any}"
            options = [
                self._scalars(("null", "boolean", "number")),
                self._string({}),
                self._listed("[", self._any, "]"),
                self._listed("{", self._lark.rule("pair", pair), "}"),
            ]
            self._lark.close_rule(self._any, " | ".join(options))
        return self._any

    # -- one schema -------------------------------------------------------------------------------

    def _alternatives(self, schema: Schema) -> str:
        if schema is True or schema == {}:
            return self.any_value()
        if not isinstance(schema, dict):
            raise NotEnforceable("a schema that nothing fits")
        asked = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        if not asked:
            return self.any_value()
        for key, read in (("$ref", self._reference), ("const", self._constant)):
            if key in asked:
                require_known(asked, {key, "type"})
                return read(asked[key])
        if "enum" in asked:
            require_known(asked, {"enum", "type"})
            return self._enumerated(asked["enum"], asked.get("type"))
        for key in ("anyOf", "oneOf", "allOf"):
            if key in asked:
                require_known(asked, {key})
                return self._combined(key, asked[key])
        return self._typed(asked)

    def _reference(self, reference: JsonValue) -> str:
        if not isinstance(reference, str):
            raise NotEnforceable(f"the reference {reference!r}")
        if reference not in self._by_reference:
            name = self._lark.open_rule("named")
            self._by_reference[reference] = name
            self._lark.close_rule(name, self._alternatives(resolve(reference, self._root)))
        return self._by_reference[reference]

    def _constant(self, value: JsonValue) -> str:
        text = write_literal(value, self._syntax)
        if (
            isinstance(value, str)
            and not self._syntax.escapes
            and self._syntax.string_close in value
        ):
            raise NotEnforceable(f"a text with {self._syntax.string_close!r} in it")
        return self._lark.exactly(text) if not isinstance(value, str) else self._string_of(text)

    def _string_of(self, literal: str) -> str:
        """A string's literal: only its quotes control, its content does not."""
        opening, closing = self._syntax.string_open, self._syntax.string_close
        content = literal[len(opening) : len(literal) - len(closing)]
        parts = (self._lark.exactly(opening), quoted(content), self._lark.exactly(closing))
        return " ".join(parts)

    def _enumerated(self, values: JsonValue, type_: JsonValue) -> str:
        if not isinstance(values, list) or not values:
            raise NotEnforceable("an 'enum' without values")
        types = _types_of(type_)
        fitting = [value for value in values if _has_type(value, types)]
        return " | ".join(f"({self._constant(value)})" for value in fitting)

    def _combined(self, key: str, branches: JsonValue) -> str:
        if not isinstance(branches, list) or not branches:
            raise NotEnforceable(f"{key!r} without schemas")
        if key == "allOf" and len(branches) > 1:
            raise NotEnforceable("'allOf' of several schemas")
        if key == "oneOf" and not self._exclude_each_other(branches):
            raise NotEnforceable("'oneOf' of schemas that overlap")
        return " | ".join(f"({self._alternatives(branch)})" for branch in branches)

    def _exclude_each_other(self, branches: list[JsonValue]) -> bool:
        plain = [self._plain(branch) for branch in branches]
        kinds = [one.get("type") for one in plain]
        if all(isinstance(kind, str) for kind in kinds):
            numeric = ["number" if kind == "integer" else kind for kind in kinds]
            if len({str(kind) for kind in numeric}) == len(kinds):
                return True
        return any(_tells_apart(name, plain) for name in _property_names(plain))

    def _plain(self, branch: JsonValue) -> dict[str, JsonValue]:
        if isinstance(branch, dict) and isinstance(branch.get("$ref"), str):
            branch = resolve(str(branch["$ref"]), self._root)
        return branch if isinstance(branch, dict) else {}

    def _typed(self, schema: dict[str, JsonValue]) -> str:
        require_known(schema, {"type", *_OF_TYPE_ALL})
        options = [self._of_type(one, schema) for one in _types_of(schema.get("type"))]
        return " | ".join(f"({option})" for option in options)

    def _of_type(self, type_: str, schema: dict[str, JsonValue]) -> str:
        match type_:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                asked = {key: schema[key] for key in _OF_TYPE["number"] if key in schema}
                return self._lark.json({"type": type_, **asked})
            case "boolean" | "null":
                return self._scalars((type_,))
            case _:
                raise NotEnforceable(f"the type {type_!r}")

    def _scalars(self, types: Iterable[str]) -> str:
        syntax = self._syntax
        words: dict[str, str] = {
            "null": quoted(syntax.null),
            "boolean": f"{quoted(syntax.true)} | {quoted(syntax.false)}",
        }
        return " | ".join(words.get(one) or self._lark.json({"type": one}) for one in types)

    def _string(self, schema: dict[str, JsonValue]) -> str:
        asked = {key: schema[key] for key in _OF_TYPE["string"] if key in schema}
        if self._syntax.escapes:
            return self._lark.json({"type": "string", **asked})
        opening = self._lark.exactly(self._syntax.string_open)
        return f"{opening} {self._lark.until(self._syntax.string_close, text_body(asked))}"

    def _array(self, schema: dict[str, JsonValue]) -> str:
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most == 0:
            return quoted("[]")
        item = self._lark.rule("item", self._alternatives(schema.get("items", True)))
        return self._listed("[", item, "]", least, most)

    def _listed(
        self, opening: str, item: str, closing: str, least: int = 0, most: int | None = None
    ) -> str:
        rest = f"({quoted(self._syntax.item_separator)} {item})"
        limit = "" if most is None else str(most - 1)
        filled = item if most == 1 else f"{item} {rest}{{{max(least - 1, 0)},{limit}}}"
        inside = filled if least else f"({filled})?"
        return f"{quoted(opening)} {inside} {quoted(closing)}"

    def _object(self, schema: dict[str, JsonValue]) -> str:
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        extra = schema.get("additionalProperties", False)
        if not properties and extra not in (False, None):
            value = self._lark.rule("value", self._alternatives(extra))
            pair = self._lark.rule("pair", f"{self._key_text()} {value}")
            return self._listed("{", pair, "}")
        separator = quoted(self._syntax.item_separator)
        members = [
            (
                f"{quoted(self._key(name))} {quoted(self._syntax.inner_pair_separator)} "
                + self._lark.rule("value", self._alternatives(one)),
                name in required_of(schema),
            )
            for name, one in properties.items()
        ]
        inside = in_order(self._lark, members, separator)
        return f"{quoted('{')} {inside} {quoted('}')}"

    def _key(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False) if self._syntax.quotes_keys else name

    def _key_text(self) -> str:
        if self._syntax.quotes_keys:
            key = self._lark.json({"type": "string"})
        else:
            key = regex("[a-zA-Z_][a-zA-Z0-9_]*")
        return f"{key} {quoted(self._syntax.inner_pair_separator)}"


def resolve(reference: str, root: Mapping[str, JsonValue]) -> Schema:
    """The schema that a reference inside the root names. Raises NotEnforceable."""
    found: JsonValue = dict(root)
    if not reference.startswith("#/"):
        raise NotEnforceable(f"the reference {reference!r}")
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            raise NotEnforceable(f"the reference {reference!r}")
        found = found[key]
    return found


def require_known(schema: Mapping[str, JsonValue], known: set[str]) -> None:
    """Raises NotEnforceable for a keyword that asks for something and is none of these."""
    for key in schema:
        if key not in known and key not in _ANNOTATIONS:
            raise NotEnforceable(f"{key!r}")


def in_order(lark: LarkText, members: list[tuple[str, bool]], separator: str) -> str:
    """An expression for members in this order, those that are not required left out or not.

    members: of each its expression and whether it is required. Grows with their number, not with
    that of their combinations.
    """
    later = begun = ""
    for member, is_required in reversed(members):
        following = f"{separator} {member} {later}" if separator else f"{member} {later}"
        first = f"{member} {later}"
        begun = lark.rule("first", first if is_required else f"({first})" + _or(begun))
        later = lark.rule("then", following if is_required else f"({following})" + _or(later))
    return begun


def required_of(schema: Mapping[str, JsonValue]) -> list[JsonValue]:
    """The names of what an object must have."""
    required = schema.get("required", [])
    return required if isinstance(required, list) else []


def text_body(schema: Mapping[str, JsonValue]) -> str:
    """A terminal's expression for raw texts of a string schema. Raises NotEnforceable."""
    bodies: list[str] = []
    pattern, format_ = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        bodies.append(regex(_whole(pattern)))
    if isinstance(format_, str):
        if format_ not in _FORMATS:
            raise NotEnforceable(f"the format {format_!r}")
        bodies.append(regex(_FORMATS[format_]))
    least, most = _count(schema, "minLength"), _count(schema, "maxLength")
    if least is not None or most is not None:
        bodies.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    return " & ".join(bodies) or ANY_TEXT


def text_of_constant(value: str, ending: str) -> str:
    """A terminal's expression for exactly this raw text. Raises NotEnforceable."""
    if ending in value:
        raise NotEnforceable(f"a text with {ending!r} in it")
    return f"/{escaped(value)}/"


def _whole(pattern: str) -> str:
    """A regex for all of a text in which `pattern` is found: JSON Schema looks for it anywhere.

    Raises NotEnforceable where '^' and '$' do not stand around the whole of it.
    """
    tops, anchors = _structure(pattern)
    last = len(pattern) - 1
    begins, ends = 0 in anchors, last in anchors and pattern[last] == "$"
    if set(anchors) - {0, last} or (tops and anchors):
        raise NotEnforceable(f"the pattern {pattern!r}")
    inner = pattern[1 if begins else 0 : last if ends else None]
    return f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"


def _structure(pattern: str) -> tuple[list[int], list[int]]:
    """Where a regex has alternatives that no group encloses, and where it has anchors."""
    tops: list[int] = []
    anchors: list[int] = []
    depth, in_class, idx = 0, False, 0
    while idx < len(pattern):
        char = pattern[idx]
        if char == "\\":
            idx += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            tops.append(idx)
        elif char in "^$":
            anchors.append(idx)
        idx += 1
    return tops, anchors


def _or(expression: str) -> str:
    return f" | {expression}" if expression else ' | ""'


def _count(schema: Mapping[str, JsonValue], key: str) -> int | None:
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _types_of(type_: JsonValue) -> tuple[str, ...]:
    if type_ is None:
        return tuple(one for one in _TYPES if one != "integer")
    listed = type_ if isinstance(type_, list) else [type_]
    return tuple(str(one) for one in listed)


def _has_type(value: JsonValue, types: tuple[str, ...]) -> bool:
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return "integer" in types or "number" in types
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case str():
            return "string" in types
        case list():
            return "array" in types
        case dict():
            return "object" in types


def _property_names(schemas: list[dict[str, JsonValue]]) -> list[str]:
    first = schemas[0].get("properties")
    return list(first) if isinstance(first, dict) else []


def _tells_apart(name: str, schemas: list[dict[str, JsonValue]]) -> bool:
    """Whether every schema requires the property and names values for it that no other names."""
    seen: list[str] = []
    for schema in schemas:
        properties = schema.get("properties")
        one = properties.get(name) if isinstance(properties, dict) else None
        if not isinstance(one, dict) or name not in required_of(schema):
            return False
        values = listed_values(one)
        if values is None:
            return False
        seen += [json.dumps(value, sort_keys=True) for value in values]
    return len(set(seen)) == len(seen)
