"""Python values as JSON: what events, prompts, tools and inputs carry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from flowforge.language.json_values import problem_with_json

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue


def json_value(value: object) -> JsonValue:
    """The value as JSON, exactly. Raises ValueError, saying why, for what JSON cannot say."""
    try:
        jsonable = to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeError) as error:
        raise ValueError(str(error)) from error
    problem = problem_with_json(jsonable)
    if problem is not None:
        raise ValueError(problem)
    return cast("JsonValue", jsonable)


def shown_value(value: object) -> JsonValue:
    """The value as events show it, whatever it is: JSON, its type's name where that has no form.

    Infinities and NaN are shown as texts, and what is no character of Unicode as U+FFFD.
    """
    try:
        jsonable = to_jsonable_python(value, fallback=_type_name, inf_nan_mode="constants")
    except ValueError:  # a key that is no text of Unicode, a value that holds itself
        return _type_name(value)
    return _writable(cast("JsonValue", jsonable))


def _type_name(value: object) -> str:
    return f"<{type(value).__name__}>"


def _writable(value: JsonValue) -> JsonValue:
    """The value with texts in the place of what UTF-8 and JSON do not have."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if not math.isfinite(value):
            return str(value)
        case list():
            return [_writable(item) for item in value]
        case dict():
            return {str(_writable(key)): _writable(one) for key, one in value.items()}
        case _:
            return value
