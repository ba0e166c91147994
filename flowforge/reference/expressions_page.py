"""The page of the expression language, whose examples are evaluated."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import (
    MAX_EXPRESSION_CHARS,
    MAX_EXPRESSION_DEPTH,
    RESERVED_WORDS,
    parse_expression,
)
from flowforge.language.filters import FILTERS
from flowforge.language.json_values import MAX_TEXT_CHARS, MAX_VALUE_DEPTH, MAX_VALUE_PARTS
from flowforge.language.token_meter import MeasuredNames, WordMeter
from flowforge.language.types import display_type
from flowforge.reference.markdown import MADE, code, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.filter_rules import Filter
    from flowforge.language.program import JsonValue

_ROWS: JsonValue = [{"name": "Ada", "ok": True}, {"name": "Bob", "ok": False}]
_SCOPE: Mapping[str, JsonValue] = {
    "inputs": {"rows": _ROWS, "topic": "tides"},
    "score": 7,
    "note": None,
    "review": {"ok": False, "problems": ["too long"]},
}
_FORMS = (
    ("a name in scope", "score"),
    ("a field; an absent one is null", "inputs.topic"),
    ("an item; negative counts from the end", "inputs.rows[-1]"),
    ("a field whose name is no name", 'review["ok"]'),
    ("literals", '[1, 2.5, "text", true, null]'),
    ("a filter", "review.problems | first"),
    ("sign, `*`, `/`, `%`, `+`, `-`, on numbers", "(score + 1) * 2 % 5"),
    ("division always gives a fraction", "score / 2"),
    ("a value for null", 'note ?? "nothing"'),
    ("comparison", "score >= 5"),
    ("equality of JSON values", "score == 7.0"),
    ("an item of a list, a field of an object, a part of a text", '"too" in "too long"'),
    ("not", "not review.ok"),
    ("and, or; the right side is looked at only if needed", "score > 5 and not review.ok"),
    ("a choice", '"good" if review.ok else "poor"'),
)


def expressions_page() -> str:
    """The reference of the expression language; every example is evaluated here."""
    grammar = resources.files("flowforge.language").joinpath("expression.lark")
    forms = ((what, code(text), _result(text)) for what, text in _FORMS)
    filters = (_filter_row(FILTERS[name]) for name in sorted(FILTERS))
    return f"""# Expressions

{MADE}

An expression stands in `${{ … }}`. It reads values and makes a value; it calls nothing, changes
nothing, and always ends. A text that is nothing but one expression keeps the value's type; in any
other text the value is written out: texts as they are, numbers, booleans, lists and objects as
JSON. Null in a text is an error, which `??` takes care of. `$${{` is the text `${{`. Values are
never read as expressions again.

Names are steps, loop variables, carried values and `inputs`. A name may hold `-`: write spaces
around a minus. Words of the language, which no name can be: {", ".join(sorted(RESERVED_WORDS))}.

## Forms

From what binds tightest to what binds loosest; parentheses group. The examples are evaluated with
`inputs = {json.dumps(_SCOPE["inputs"])}`, `score = 7`, `note = null` and
`review = {json.dumps(_SCOPE["review"])}`.

{table(("form", "example", "gives"), forms)}

## Filters

`value | filter` or `value | filter(argument, …)`. Arguments in brackets may be left out.

{table(("filter", "takes", "what it gives", "example", "gives"), filters)}

Tokens are those of the run's own model. Where answers are scripted there is none, and a token is a
word with the white space behind it, as in these examples.

## Limits

- An expression has at most {MAX_EXPRESSION_CHARS:,} characters and {MAX_EXPRESSION_DEPTH} levels.
- A text has at most {MAX_TEXT_CHARS:,} characters.
- A value that an expression puts together has at most {MAX_VALUE_PARTS:,} parts and as many
  characters as a text, counted as if it were written out, and {MAX_VALUE_DEPTH} levels.
- Numbers are finite, and whole numbers have at most 1,024 bits.

What goes beyond is the error WF403 or WF209, never a wait.

## Grammar

```lark
{grammar.read_text(encoding="utf-8").strip()}
```
"""


def _filter_row(filter_: Filter) -> tuple[str, ...]:
    arguments = [
        argument.name if argument.is_required else f"[{argument.name}]"
        for argument in filter_.arguments
    ]
    call = f"{filter_.name}({', '.join(arguments)})" if arguments else filter_.name
    takes = code(display_type(filter_.subject).replace("|", "or"))
    return code(call), takes, filter_.summary, code(filter_.example), _result(filter_.example)


def _result(text: str) -> str:
    value = evaluate_node(parse_expression(text), MeasuredNames(_SCOPE, WordMeter()))
    return code(json.dumps(value, ensure_ascii=False))
