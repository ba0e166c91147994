"""The page of all keys of a workflow file, made from the schema that editors use."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flowforge.language.common_keys import COMMON_KEYS
from flowforge.language.editor_schema import editor_schema
from flowforge.language.steps import VERBS
from flowforge.reference.markdown import MADE, code, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.language.editor_words import Schema

_WORDS = {
    "value": "any value; texts in it may hold `${ … }`",
    "text": "a text",
    "condition": "`true`, `false` or `${ … }`",
    "duration": "a duration, as `500ms`, `30s`, `1h30m`",
    "type": "a type: `string`, `number`, `integer`, `boolean`, `null`, `array`, `object`, `any`, a "
    "name under `types`, or a JSON Schema",
    "steps": "steps by name",
    "step": "a step",
    "explicit_block": "`{ do: steps, yield: value }`",
    "block": "steps by name, or `{ do: steps, yield: value }`",
    "join": "`all`, `settle`, `first`, `vote`, `{ quorum: 2 }` or `{ best: '${ value.score }' }`",
    "best": "`{ best: '${ value | len }' }`",
    "retry": "a number of tries, or a mapping of the keys below",
    "catch": "a mapping of the keys below",
    "tool": "a mapping of the keys below",
    "model": "a mapping of the keys below",
    "gen_options": "a mapping of the keys below, or nothing for free text",
    "turn": "a mapping of the keys below",
}
_JOINS = (
    (
        "`all`",
        "when every branch has succeeded; the first failure fails the step",
        "all values, in order",
    ),
    ("`settle`", "when every branch has ended", "`{ ok, value, error }` of each, in order"),
    ("`first`", "when one has succeeded", "its value"),
    ("`{ quorum: k }`", "when k have succeeded", "their values, in order"),
    (
        "`{ best: expression }`",
        "when every branch has ended",
        "the value with the highest number",
    ),
    ("`vote`", "when the others cannot change the result", "the value that most gave"),
)
_PARTS = (
    ("gen_options", "The keys of `gen`"),
    ("turn", "The keys of a turn"),
    ("retry", "The keys of `retry`"),
    ("catch", "The keys of `catch`"),
    ("tool", "The keys of a tool"),
    ("model", "The keys of a model of another server"),
)
_NOTES = {
    "retry": """A step is tried again where another try can end otherwise. `retry` covers:

- answers that were cut off (WF501), are not JSON (WF412), break their schema (WF413), are none of
  the choices or do not match their regex (WF513), do not fit their grammar (WF433), are refused
  by the validators of a type (WF603) or blocked by a hook (WF427), take too long to parse (WF434)
  or outgrow their constraint (WF418), call tools in too many turns (WF424), or do not end a loop in
  its rounds (WF508);
- a `timeout` that was reached (WF504);
- failures of the engine, of a server (EN) or of a tool (TL), but for those that every try would
  meet again: a model that is not there or cannot be loaded (EN1, but for EN103 and EN104, which are
  of fetching it), a request that the engine does not take or that cannot fit (EN201 to EN210), its
  settings, or the end of one of its processes (EN230 to EN237, but for EN232, which is of memory),
  a tokenizer or template (EN3), what a server refuses (EN402, EN404, EN405, EN407, EN410), a tool
  that cannot be called so (TL1) or is not there (TL302);
- a join whose branches failed (WF507), and any step with steps in it: where this holds for each of
  the failures within. A join with too few branches has as few at each try, and fails at once.

All else is for the author to change, and fails at once. Each try draws with a seed of its own.
The engine's answer is the same again where `temperature` is 0, as it is without a word on it.""",
}


def language_page() -> str:
    """The reference of a workflow file's keys."""
    schema = editor_schema()
    shapes = cast("dict[str, Schema]", schema["$defs"])
    common = _table(shapes["set"], shapes, COMMON_KEYS)
    verbs = "\n\n".join(
        f"### {verb}\n\n{shapes[verb]['description']}\n\n{_table(shapes[verb], shapes, rule.keys)}"
        for verb, rule in VERBS.items()
    )
    parts = "\n\n".join(
        "\n\n".join((f"## {title}", _table(_mapping(shapes[name]), shapes, None), *_notes_on(name)))
        for name, title in _PARTS
    )
    return f"""# The language

{MADE}

All keys of a workflow file. What an expression in `${{ … }}` may say stands in
[expressions.md](expressions.md), how steps work together in [examples.md](examples.md). A key in
bold must be there.

## The file

{_table(schema, shapes, None)}

## Steps

A step has a name and exactly one of the verbs below. It starts as soon as what it refers to is
there; the order in the file does not matter. A block of one step has that step's value, one of
several says with `yield` what it gives. A step that was skipped is null.

Beside those of its verb, every step may have these keys:

{common}

{verbs}

## Joins

`join` says when branches are enough, and what they come to. What is not needed any more is
cancelled.

{table(("policy", "ends", "value"), _JOINS)}

{parts}
"""


def _notes_on(name: str) -> tuple[str, ...]:
    return (_NOTES[name],) if name in _NOTES else ()


def _table(owner: Schema, shapes: dict[str, Schema], keys: Iterable[str] | None) -> str:
    properties = cast("dict[str, Schema]", owner["properties"])
    required = cast("list[str]", owner.get("required", []))
    rows = (
        (
            f"**{code(key)}**" if key in required else code(key),
            _form(properties[key], shapes),
            str(properties[key].get("description", "")),
        )
        for key in (properties if keys is None else keys)
    )
    return table(("key", "value", "what it says"), rows)


def _mapping(shape: Schema) -> Schema:
    """The form of a shape that is a mapping."""
    forms = cast("list[Schema]", shape.get("anyOf", [shape]))
    return next(form for form in forms if "properties" in form)


def _form(part: Schema, shapes: dict[str, Schema]) -> str:
    """What may stand under a key, in words."""
    if "$ref" in part:
        name = str(part["$ref"]).rpartition("/")[2]
        return _WORDS[name] if name in _WORDS else _form(shapes[name], shapes)
    if "enum" in part:
        return " or ".join(f"`{word}`" for word in cast("list[str]", part["enum"]))
    if "const" in part:
        return f"`{part['const']}`"
    if "anyOf" in part:
        forms = [_form(one, shapes) for one in cast("list[Schema]", part["anyOf"])]
        return ", or ".join(dict.fromkeys(form for form in forms if form))
    kind = part.get("type")
    if kind == "array":
        items = cast("Schema", part.get("items", {}))
        form = _form(items, shapes)
        return f"a list; each item: {form}" if "$ref" in items else "a list of texts"
    if kind == "object":
        inner = part.get("additionalProperties")
        if isinstance(inner, dict):
            return f"a mapping; each value: {_form(inner, shapes)}"
        names = [f"`{name}`" for name in cast("Schema", part.get("properties", {}))]
        return f"a mapping of {', '.join(names)}" if names else "a mapping"
    words = {
        "string": "a text", "number": "a number", "integer": "a whole number",
        "boolean": "`true` or `false`",
    }  # fmt: skip
    if isinstance(kind, list):
        return "a mapping, or nothing" if "object" in kind else "a text"
    least = part.get("minimum")
    bound = f", at least {least}" if kind == "integer" and least is not None else ""
    return words.get(str(kind), "") + bound
