"""The judge of finished JSON: parsed without mercy, then validated under its schema."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NoReturn, cast

from flowforge.errors import WorkflowError
from flowforge.grammars.schema_dialect import make_validator, to_pointer

if TYPE_CHECKING:
    from jsonschema import ValidationError

    from flowforge.grammars.schema_dialect import JsonInput, JsonValue

_SHOWN_CHARS = 60


def validate_json(text: str, schema: JsonInput) -> JsonValue:
    """Parse JSON and validate it, format assertions included.

    schema: one that `check_schema` finds no error in.
    Raises WorkflowError WF412 when the text is not one JSON value (NaN, a number past a float's
    range, a key twice, and nesting past the parser's depth count as not) and WF413, naming JSON
    pointer and keyword, when the value breaks the schema.
    """
    from jsonschema.exceptions import best_match

    try:
        value = _parse(text)
        worst = best_match(make_validator(schema).iter_errors(value))
    except RecursionError as error:
        raise _not_json("it is nested too deep") from error
    if worst is not None:
        raise _breaks_schema(worst)
    return value


def _parse(text: str) -> JsonValue:
    try:
        parsed = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        # Escapes can spell half a character, which no text may hold.
        json.dumps(parsed, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _not_json(f"{error.msg[:1].lower()}{error.msg[1:]} at {where}") from error
    except UnicodeEncodeError as error:
        raise _not_json(f"U+{ord(error.object[error.start]):04X} is no character") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise _not_json(str(error).split(";")[0].lower()) from error
    return cast("JsonValue", parsed)


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    keys_seen: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in keys_seen:
            raise _not_json(f"key {_shorten(key)} is there twice")
        keys_seen[key] = value
    return keys_seen


def _refuse_constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _not_json(f"number {_shorten(digits)} is past the range of a float")
    return number


def _not_json(reason: str) -> WorkflowError:
    return WorkflowError(
        "WF412",
        f"the answer is not JSON: {reason}",
        help="give the step more max_tokens if the answer was cut off",
    )


def _breaks_schema(error: ValidationError) -> WorkflowError:
    pointer = to_pointer(error.absolute_path)
    where = f"at {pointer!r}" if pointer else "as a whole"
    # Not the library's own message: it prints the value in full, however long.
    found, expected = _shorten(error.instance), _shorten(error.validator_value)
    return WorkflowError(
        "WF413",
        f"the answer {where} breaks {error.validator!r}: got {found}, expected {expected}",
        help="loosen the schema, or ask for its form in the prompt",
    )


def _shorten(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[: _SHOWN_CHARS - 1]}…"
