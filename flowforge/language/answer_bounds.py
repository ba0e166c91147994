"""Whether the form of an answer bounds its length."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowforge.patterns import for_python

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

# Beyond it, `re` says only that a repetition has no end.
_MOST_WIDTH = 1 << 16
_MOST_DEPTH = 64
_COMBINING = ("anyOf", "oneOf", "allOf")


def width_of_regex(regex: str) -> tuple[int, int | None] | None:
    """The fewest and the most characters of a match, None for no end; None if not known at all."""
    try:
        # Its width is what `re` itself goes by; there is no public way to it.
        parsed: Any = importlib.import_module("re._parser").parse(for_python(regex))
        least, most = (int(width) for width in parsed.getwidth())
    except (ImportError, AttributeError, re.error, OverflowError, RecursionError):
        return None
    return least, None if most >= _MOST_WIDTH else most


def is_endless_regex(regex: str) -> bool:
    """Whether a match may have any length."""
    width = width_of_regex(regex)
    return width is not None and width[1] is None


def endless_part(schema: JsonValue, path: str = "", depth: int = 0) -> str | None:
    """What of a JSON Schema sets no end to the JSON, as 'items of …'; None when all ends.

    What cannot be told at a glance, as a reference, counts as ending.
    """
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH or "enum" in schema:
        return None
    inner: list[tuple[str, JsonValue]] = []
    for word in _COMBINING:
        parts = schema.get(word)
        if word == "allOf" and parts is not None:
            return None
        inner += [(path, part) for part in parts] if isinstance(parts, list) else []
    match schema.get("type"):
        case "string" if not _ends(schema):
            return f"the text {_named(path)}"
        case "array":
            if schema.get("maxItems") is None:
                return f"the list {_named(path)}"
            inner.append((f"{path}[]", schema.get("items")))
        case "object":
            properties = schema.get("properties")
            fields = properties.items() if isinstance(properties, Mapping) else ()
            inner += [(f"{path}.{name}", part) for name, part in fields]
        case _:
            pass
    endless = (endless_part(part, name, depth + 1) for name, part in inner)
    return next((part for part in endless if part is not None), None)


def _ends(schema: Mapping[str, JsonValue]) -> bool:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern.startswith("^") and pattern.endswith("$"):
        return not is_endless_regex(pattern)
    return any(word in schema for word in ("maxLength", "const", "format"))


def _named(path: str) -> str:
    return path.removeprefix(".") or "that it is"
