"""What is wrong with a JSON Schema, found before a token is spent and without a model.

Three readings, each only if the one before found no error: size and depth; the meta-schema and
the keywords; and the grammar that the schema compiles to, with what that leaves out.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.grammars.characters import half_of_a_pair
from flowforge.grammars.json_options import STRICT
from flowforge.grammars.lowering.endless import endless_references
from flowforge.grammars.lowering.formats import MASKED, asks_judge_only, is_masked
from flowforge.grammars.lowering.local_references import with_local_references
from flowforge.grammars.lowering.positions import ANNOTATIONS, KNOWN, inner_schemas
from flowforge.grammars.plain_schemas import is_sure_to_compile
from flowforge.grammars.schema_dialect import draft_of, to_plain, to_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema import ValidationError

    from flowforge.grammars.json_grammar import JsonGrammar
    from flowforge.grammars.json_options import JsonOptions
    from flowforge.grammars.lowering.walk import Unenforced
    from flowforge.grammars.schema_dialect import JsonInput, JsonValue

    Path = tuple[str | int, ...]

MAX_NESTING = 64
MAX_CHARS = 1_000_000
# Schemas compiled by themselves in search of the one at fault.
_MAX_LOOKS = 200


_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_HINTS = {
    "uniqueItems": "leave it out and remove duplicates in the step that reads the answer",
    "dependentRequired": "name the combinations with anyOf",
    "dependentSchemas": "name the combinations with anyOf",
    "if": "name the combinations with anyOf",
    "oneOf": "give each branch a property with another const, or use anyOf",
    "not": "say with enum, anyOf or pattern what is allowed",
}
# So llguidance begins, and no policy helps.
_UNSATISFIABLE = "Unsatisfiable schema"
# Of Python's words for what is wrong with a regex, those about brackets.
_BRACKET_WORDS = ("unterminated", "unbalanced")
_CLOSE_BRACKETS = r"close each bracket; '\(' and '\[' are the characters themselves"
_MEND_REGEX = "mend the regex, as in ^[A-Z]{2}-[0-9]+$"
_RELAX = "or judge only the finished answer by it, with on_unsupported: relax"


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


def check_schema(schema: JsonInput, options: JsonOptions = STRICT) -> list[SchemaProblem]:
    """Find what keeps a schema from being valid or enforced, and what looks like a slip.

    What only the finished answer can be judged by is an error, or a warning if `options` relax it.
    Never raises for a bad schema; the list is empty for a good one.
    """
    problems = check_words(schema)
    has_error = any(problem.severity == "error" for problem in problems)
    plain = None if has_error else to_plain(schema)
    if not has_error and not is_sure_to_compile(plain):
        problems += _check_grammar(plain, options)
    return problems


def check_words(schema: JsonInput) -> list[SchemaProblem]:
    """The part of `check_schema` that compiles nothing: size, meta-schema, keywords."""
    problems = _check_limits(schema)
    if problems:
        return problems
    plain = to_plain(schema)
    halves = [*_check_characters(plain, ())]
    if halves:
        return halves
    broken = [*_check_meta_schema(plain)]
    # What is no schema has no references to be followed.
    known = plain if broken else with_local_references(plain)
    endless = [] if broken else [_endless(path) for path in endless_references(known)]
    return [*broken, *_check_keywords(known, ()), *endless]


def left_out(keyword: Unenforced, options: JsonOptions) -> SchemaProblem:
    """What is said of a keyword that only the finished answer can be judged by."""
    name = repr(keyword.keyword)
    if options.on_unsupported == "relax":
        message = f"keyword {name} judges only the finished answer: {keyword.reason}"
        return SchemaProblem(keyword.pointer, message, "warning", keyword.instead)
    otherwise = "leave it out, or say it with keywords that can be enforced"
    hint = keyword.instead or _HINTS.get(keyword.keyword, otherwise)
    message = f"keyword {name} cannot be enforced while the model writes: {keyword.reason}"
    return SchemaProblem(keyword.pointer, message, "error", f"{hint}; {_RELAX}")


def _check_limits(schema: JsonInput) -> list[SchemaProblem]:
    depth = _depth(schema)
    if depth > MAX_NESTING:
        return [SchemaProblem("", f"nested {depth} deep, expected at most {MAX_NESTING}")]
    try:
        num_chars = len(json.dumps(to_plain(schema), allow_nan=False))
    except (TypeError, ValueError) as error:
        return [SchemaProblem("", f"not a JSON value: {str(error).lower()}")]
    if num_chars > MAX_CHARS:
        message = f"the schema has {num_chars:,} characters, expected at most {MAX_CHARS:,}"
        return [SchemaProblem("", message, help="make it smaller: say long lists with pattern")]
    return []


def _check_characters(value: JsonValue, path: Path) -> Iterator[SchemaProblem]:
    help = "write the character itself, or both halves of it"
    if isinstance(value, str):
        half = half_of_a_pair(value)
        if half is not None:
            yield SchemaProblem(to_pointer(path), half, help=help)
    elif isinstance(value, dict):
        for key, inner in value.items():
            half = half_of_a_pair(key)
            if half is not None:
                yield SchemaProblem(to_pointer(path), f"key {key!r}: {half}", help=help)
            yield from _check_characters(inner, (*path, key))
    elif isinstance(value, list):
        for idx, inner in enumerate(value):
            yield from _check_characters(inner, (*path, idx))


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
    draft = draft_of(schema)
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
        for inner_path, inner in inner_schemas(keyword, value):
            yield from _check_keywords(inner, (*path, *inner_path))


def _check_keyword(keyword: str, value: JsonValue, path: Path) -> Iterator[SchemaProblem]:
    is_reference = keyword in ("$ref", "$dynamicRef") and isinstance(value, str)
    if is_reference and not str(value).startswith("#"):
        yield SchemaProblem(
            to_pointer(path),
            f"reference {value!r} leads out of the schema, expected '#/…'; nothing is fetched",
            help="put what it refers to under $defs",
        )
    elif keyword == "format" and isinstance(value, str):
        if not is_masked(value) and not asks_judge_only(value):
            yield _unknown_format(value, path)
    elif keyword == "pattern" and isinstance(value, str):
        yield from _check_pattern(value, keyword, path)
    elif keyword == "patternProperties" and isinstance(value, dict):
        for pattern in value:
            yield from _check_pattern(pattern, keyword, (*path, pattern))
    elif keyword not in KNOWN:
        yield _unknown_keyword(keyword, path)


def _check_pattern(pattern: str, keyword: str, path: Path) -> Iterator[SchemaProblem]:
    from flowforge.grammars.form_matching import unknown_class
    from flowforge.grammars.json_patterns import why_no_regex

    reason = why_no_regex(pattern)
    unknown = None if reason is None else unknown_class(pattern)
    if unknown is not None:
        message = f"{keyword!r} is no regex: {unknown.reason}"
        yield SchemaProblem(to_pointer(path), message, "error", unknown.instead)
    elif reason is not None:
        message = f"{keyword!r} is no regex: {reason}"
        is_bracket = any(word in reason for word in _BRACKET_WORDS)
        help = _CLOSE_BRACKETS if is_bracket else _MEND_REGEX
        yield SchemaProblem(to_pointer(path), message, "error", help)


def _endless(path: Path) -> SchemaProblem:
    return SchemaProblem(
        to_pointer(path),
        "no answer can end in it: each way through it comes back to itself",
        help="leave it out of 'required', or give it an anyOf with something that ends",
    )


def _unknown_format(name: str, path: Path) -> SchemaProblem:
    """A format that nobody knows is an annotation, as JSON Schema has it; a slip is an error."""
    near = difflib.get_close_matches(name.replace("_", "-").lower(), sorted(MASKED), 1, 0.8)
    if near:
        help = f"did you mean {near[0]!r}?"
        return SchemaProblem(to_pointer(path), f"unknown format {name!r}", "error", help)
    message = f"unknown format {name!r} asks for nothing"
    return SchemaProblem(to_pointer(path), message, "warning", "say with pattern what is meant")


def _unknown_keyword(keyword: str, path: Path) -> SchemaProblem:
    """A misspelt constraint would go unenforced: an error. Anything else unknown is a remark."""
    pointer = to_pointer(path)
    near = difflib.get_close_matches(keyword, sorted(KNOWN), n=1, cutoff=0.8)
    if not near or keyword.startswith(("_", "x-", "$")):
        message = f"unknown keyword {keyword!r} asks for nothing"
        return SchemaProblem(pointer, message, "warning", "remove it")
    severity: Literal["error", "warning"] = "warning" if near[0] in ANNOTATIONS else "error"
    return SchemaProblem(
        pointer, f"unknown keyword {keyword!r}", severity, f"did you mean {near[0]!r}?"
    )


def _check_grammar(schema: JsonValue, options: JsonOptions) -> list[SchemaProblem]:
    """Compile without a vocabulary: ranges, patterns, references, and what is too large."""
    from flowforge.grammars.json_grammar import json_grammars

    grammar, reason = _compiled(schema, options)
    if grammar is None:
        pointer = to_pointer(_locate(schema, reason, options))
        help = None if options.on_unsupported == "relax" else f"make it simpler; {_RELAX}"
        if reason.startswith(_UNSATISFIABLE):
            help = "no answer can satisfy it: change one of the keywords that exclude each other"
        refused = SchemaProblem(pointer, f"cannot be enforced: {reason}", help=help)
        first = next(iter(json_grammars(schema, options)))
        return [refused, *(left_out(keyword, options) for keyword in first.unenforced)]
    return [left_out(keyword, options) for keyword in grammar.unenforced]


def _compiled(schema: JsonValue, options: JsonOptions) -> tuple[JsonGrammar | None, str]:
    """The grammar of a schema, or why none compiles."""
    from flowforge.grammars.json_grammar import json_grammars

    reasons: list[str] = []
    for grammar in json_grammars(schema, options):
        reason = _fault_of(grammar)
        if not reason:
            return grammar, ""
        reasons.append(" ".join(reason.split()))
    return None, reasons[-1]


def _fault_of(grammar: JsonGrammar) -> str:
    """Why a grammar does not compile; empty where it does."""
    # Here and not above: most schemas are sure to compile, and these imports are slow.
    from flowforge.grammars.compilation import GrammarRefused, build_matcher, byte_tokenizer

    try:
        build_matcher(byte_tokenizer(), grammar.text)
    except GrammarRefused as refused:
        return refused.reason
    return ""


def _locate(schema: JsonValue, reason: str, options: JsonOptions) -> Path:
    """Find the innermost schema that fails by itself in the same words: llguidance names no place.

    One with references to the whole fails in other words by itself and is passed over.
    """
    path: Path = ()
    is_inner, num_looks = True, 0
    while is_inner:
        is_inner = False
        for keyword, value in schema.items() if isinstance(schema, dict) else ():
            for inner_path, inner in inner_schemas(keyword, value):
                num_looks += 1
                if num_looks > _MAX_LOOKS:
                    return path
                if isinstance(inner, dict) and _compiled(inner, options)[1] == reason:
                    schema, path, is_inner = inner, (*path, *inner_path), True
                    break
            if is_inner:
                break
    return path
