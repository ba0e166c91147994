"""The grammar of the JSON that a schema allows, as llguidance reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.grammars.json_options import STRICT
from flowforge.grammars.lowering.local_references import with_local_references
from flowforge.grammars.lowering.positions import REWRITTEN
from flowforge.grammars.lowering.walk import lower_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.json_options import JsonOptions
    from flowforge.grammars.lowering.walk import Unenforced
    from flowforge.grammars.schema_dialect import JsonValue

# What is left to the judge where the compiler refuses a schema with it, one step after another.
_PATTERNS = frozenset({"patternProperties"})
_COMBINED = REWRITTEN | _PATTERNS | {"allOf"}
_LEFT_OUT = (
    _PATTERNS,
    _COMBINED,
    _COMBINED
    | {"format", "maxItems", "maxLength", "minItems", "minLength", "multipleOf", "pattern"},
)
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,8}"


@dataclass(frozen=True, slots=True)
class JsonGrammar:
    """text: for `build_matcher`. unenforced: what the schema asks for and the grammar does not."""

    text: str
    unenforced: tuple[Unenforced, ...]


def json_grammars(schema: JsonValue, options: JsonOptions = STRICT) -> Iterator[JsonGrammar]:
    """The grammars to try for a schema, the best first; the first that compiles is meant.

    schema: one in which `check_schema` finds no error. Objects that could be closed are closed in
    the first; where that cannot be compiled they are left open, and where relaxing is allowed more
    and more keywords are left to the judge.
    """
    schema = with_local_references(schema)
    closed = [True, False] if options.closes_objects else [False]
    ways = [(closes, frozenset[str]()) for closes in closed]
    if options.on_unsupported == "relax":
        ways += [(False, without) for without in _LEFT_OUT]
    before: JsonValue = None
    for closes, without in ways:
        lowered = lower_schema(schema, closes_objects=closes, without=without)
        if lowered.schema != before:
            yield JsonGrammar(_grammar(lowered.schema, options), lowered.unenforced)
        before = lowered.schema


def _grammar(schema: JsonValue, options: JsonOptions) -> str:
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps({} if schema is True else {"not": {}} if schema is False else schema),
        # Whatever options the schema itself carries.
        overrides={
            "whitespace_flexible": options.whitespace == "bounded",
            "whitespace_pattern": _WHITESPACE if options.whitespace == "bounded" else None,
            "item_separator": ",",
            "key_separator": ":",
            "coerce_one_of": False,
            "lenient": False,
        },
    )
    return str(grammar)
