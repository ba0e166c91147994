"""What is wrong with a JSON Schema, found before a token is spent and without a model.

Three readings, each only if the one before found no error: size and depth; the meta-schema and
the keywords; and the grammar that the schema compiles to.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.grammars.plain_schemas import is_sure_to_compile
from flowforge.grammars.schema_dialect import make_validator, to_plain, to_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema import ValidationError

    from flowforge.grammars.schema_dialect import JsonInput, JsonValue

    Path = tuple[str | int, ...]

MAX_NESTING = 64
MAX_CHARS = 1_000_000
_MAX_REASON_CHARS = 200


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Where schemas stand inside a schema, by keyword.
_ONE_SCHEMA = frozenset({"additionalProperties", "additionalItems", "items"})
_SCHEMA_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SCHEMA_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions"})
# Keywords that the mask enforces as they stand (llguidance 1.9, strict).
_ENFORCED = _words(
    """$anchor $ref $schema const enum exclusiveMaximum exclusiveMinimum format maxItems maxLength
    maxProperties maximum minItems minLength minProperties minimum multipleOf pattern required type
    """
)
# Keywords that ask for nothing.
_ANNOTATIONS = _words(
    """$comment $id $vocabulary contentEncoding contentMediaType contentSchema default deprecated
    description examples id readOnly title writeOnly
    """
)
_NOT_ENFORCED = _words(
    """$dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef contains dependencies
    dependentRequired dependentSchemas else if maxContains minContains not propertyNames then
    unevaluatedItems unevaluatedProperties uniqueItems
    """
)
_TYPES = _words("array boolean integer null number object string")
_ALLOWED = _ENFORCED | _ANNOTATIONS | _ONE_SCHEMA | _SCHEMA_LIST | _SCHEMA_MAP
_HINTS = {
    "uniqueItems": "leave it out and remove duplicates in the step that reads the answer",
    "dependencies": "name the combinations with anyOf",
    "dependentRequired": "name the combinations with anyOf",
    "if": "name the combinations with anyOf",
    "not": "say with enum, anyOf or pattern what is allowed",
}


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """One problem. pointer: JSON pointer to the part of the schema at fault, "" for the whole.

    message: lower case, no full stop. A schema with a "warning" compiles, one with an "error"
    does not.
    """

    pointer: str
    message: str
    severity: Literal["error", "warning"] = "error"
    help: str | None = None


def check_schema(schema: JsonInput) -> list[SchemaProblem]:
    """Find what keeps a schema from being valid or enforced, and what looks like a slip.

    Never raises for a bad schema; the list is empty for a good one.
    """
    problems = _check_limits(schema)
    if problems:
        return problems
    plain = to_plain(schema)
    problems = [*_check_meta_schema(plain), *_check_keywords(plain, ())]
    has_error = any(problem.severity == "error" for problem in problems)
    if not has_error and not is_sure_to_compile(plain):
        problems += _check_grammar(plain)
    return problems


def strict_grammar(schema_json: str) -> str:
    """Wrap a schema for llguidance: compact, strict, whatever options the schema itself carries."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(
        "{}" if schema_json == "true" else schema_json,
        overrides={
            "whitespace_flexible": False,
            "item_separator": ",",
            "key_separator": ":",
            "coerce_one_of": False,
            "lenient": False,
        },
    )
    return str(grammar)


def _check_limits(schema: JsonInput) -> list[SchemaProblem]:
    depth = _depth(schema)
    if depth > MAX_NESTING:
        return [SchemaProblem("", f"nested {depth} deep, expected at most {MAX_NESTING}")]
    try:
        num_chars = len(json.dumps(to_plain(schema), allow_nan=False))
    except (TypeError, ValueError) as error:
        return [SchemaProblem("", f"not a JSON value: {str(error).lower()}")]
    if num_chars > MAX_CHARS:
        return [SchemaProblem("", f"{num_chars} characters, expected at most {MAX_CHARS}")]
    return []


def _depth(schema: JsonInput) -> int:
    """Nesting depth, by level: a recursive walk would fall over the very schemas it looks for.

    Stops one past the limit, which also ends it for a value that holds itself.
    """
    depth, level = 0, [schema]
    while level and depth <= MAX_NESTING:
        depth += 1
        level = [child for value in level for child in _children(value)]
    return depth


def _children(value: JsonInput) -> Sequence[JsonInput]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _check_meta_schema(schema: JsonValue) -> Iterator[SchemaProblem]:
    if not isinstance(schema, bool | dict):
        yield SchemaProblem("", f"a schema is an object or a boolean, got {json.dumps(schema)}")
        return
    if schema is False:
        yield SchemaProblem("", "no answer can satisfy the schema false")
    if is_plainly_valid(schema):
        return
    draft = type(make_validator(schema))
    for error in draft(draft.META_SCHEMA).iter_errors(schema):
        deepest = _deepest(error)
        yield SchemaProblem(to_pointer(deepest.absolute_path), _describe(deepest))


def is_plainly_valid(schema: JsonValue) -> bool:
    """Whether a schema is valid at a glance, as most are; false says nothing.

    The meta-schema's validator takes longer to import than a whole workflow takes to check.
    """
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    return all(_is_plain(keyword, value) for keyword, value in schema.items())


def _is_plain(keyword: str, value: JsonValue) -> bool:
    match keyword:
        case "type":
            return isinstance(value, str) and value in _TYPES
        case "items" | "additionalProperties":
            return is_plainly_valid(value)
        case "properties":
            return isinstance(value, dict) and all(map(is_plainly_valid, value.values()))
        case "required":
            names = value if isinstance(value, list) else [None]
            texts = [name for name in names if isinstance(name, str)]
            return len(set(texts)) == len(names)
        case "enum":
            return isinstance(value, list)
        case "title" | "description":
            return isinstance(value, str)
        case "minItems" | "maxItems" | "minLength" | "maxLength":
            return type(value) is int and value >= 0
        case "minimum" | "maximum":
            return type(value) in (int, float)
        case _:
            return False


def _deepest(error: ValidationError) -> ValidationError:
    """Of an anyOf's reasons, the one that got furthest."""
    while error.context:
        error = max(error.context, key=lambda inner: len(inner.absolute_path))
    return error


def _describe(error: ValidationError) -> str:
    keyword = error.absolute_path[-1] if error.absolute_path else "the schema"
    shown = json.dumps(error.instance)[:60]
    expected = json.dumps(error.validator_value)[:120]
    return f"{keyword!r} is {shown}, expected {error.validator} {expected}"


def _check_keywords(schema: JsonValue, path: Path) -> Iterator[SchemaProblem]:
    """Walk every schema inside the schema; values under const, enum or default are not schemas."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield from _check_keyword(keyword, value, (*path, keyword))
        for inner_path, inner in _inner_schemas(keyword, value):
            yield from _check_keywords(inner, (*path, *inner_path))


def _check_keyword(keyword: str, value: JsonValue, path: Path) -> Iterator[SchemaProblem]:
    if keyword in _NOT_ENFORCED:
        yield SchemaProblem(
            to_pointer(path),
            f"keyword {keyword!r} cannot be enforced while the model writes",
            help=_HINTS.get(keyword, "leave it out, or say it with keywords that can be enforced"),
        )
    elif keyword == "$ref" and isinstance(value, str) and not value.startswith("#"):
        yield SchemaProblem(
            to_pointer(path),
            f"reference {value!r} leads out of the schema, expected '#/…'",
            help="put what it refers to under $defs",
        )
    elif keyword not in _ALLOWED:
        yield _unknown_keyword(keyword, path)


def _unknown_keyword(keyword: str, path: Path) -> SchemaProblem:
    """A misspelt constraint would go unenforced: an error. Anything else unknown is a remark."""
    pointer = to_pointer(path)
    near = difflib.get_close_matches(keyword, sorted(_ALLOWED | _NOT_ENFORCED), n=1, cutoff=0.8)
    if not near or keyword.startswith(("_", "x-", "$")):
        message = f"unknown keyword {keyword!r} asks for nothing"
        return SchemaProblem(pointer, message, "warning", "remove it")
    severity: Literal["error", "warning"] = "warning" if near[0] in _ANNOTATIONS else "error"
    return SchemaProblem(
        pointer, f"unknown keyword {keyword!r}", severity, f"did you mean {near[0]!r}?"
    )


def _inner_schemas(keyword: str, value: JsonValue) -> Iterator[tuple[Path, JsonValue]]:
    if keyword in _SCHEMA_MAP and isinstance(value, dict):
        for name, inner in value.items():
            yield (keyword, name), inner
    elif keyword in _SCHEMA_LIST and isinstance(value, list):
        for idx, inner in enumerate(value):
            yield (keyword, idx), inner
    elif keyword in _ONE_SCHEMA:
        yield (keyword,), value


def _check_grammar(schema: JsonValue) -> list[SchemaProblem]:
    """Compile without a vocabulary: ranges, patterns, references, and what is too large."""
    reason = _compile_fault(schema)
    if reason is None:
        return []
    pointer = to_pointer(_locate(schema, reason))
    return [SchemaProblem(pointer, f"cannot be enforced: {reason}")]


def _compile_fault(schema: JsonValue) -> str | None:
    from llguidance import LLMatcher

    reason = str(LLMatcher.validate_grammar(strict_grammar(json.dumps(schema))))
    # A warning is about the grammar's speed and not about what it enforces.
    if not reason or reason.startswith("WARNING"):
        return None
    return " ".join(reason.removeprefix("ERROR: ").split())[:_MAX_REASON_CHARS]


def _locate(schema: JsonValue, reason: str, path: Path = ()) -> Path:
    """Find the innermost schema that fails by itself in the same words: llguidance names no place.

    One with references to the whole fails in other words by itself and is passed over.
    """
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            for inner_path, inner in _inner_schemas(keyword, value):
                if isinstance(inner, dict) and _compile_fault(inner) == reason:
                    return _locate(inner, reason, (*path, *inner_path))
    return path
