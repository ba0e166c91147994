"""Python values as JSON: what events, prompts and inputs carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue


def json_value(value: object) -> JsonValue:
    """The value as JSON; an object that JSON has no form for becomes its type's name."""
    jsonable = to_jsonable_python(value, fallback=_type_name, inf_nan_mode="strings")
    return cast("JsonValue", jsonable)


def _type_name(value: object) -> str:
    return f"<{type(value).__name__}>"
