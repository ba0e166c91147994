"""jsonschema's validators with patterns in the mask's dialect."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from flowforge.grammars.json_patterns import finds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jsonschema import ValidationError
    from jsonschema.protocols import Validator


@lru_cache(maxsize=8)
def judge_of(draft: type[Validator]) -> type[Validator]:
    """The draft's validator class, but for how it reads patterns."""
    from jsonschema.validators import extend

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    # The library's own types are `Any` here.
    make = cast("Callable[[type[Validator], Mapping[str, object]], type[Validator]]", extend)
    return make(draft, own)


def _pattern(
    validator: Validator, pattern: str, instance: object, schema: object
) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not finds(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, object], instance: object, schema: object
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in cast("dict[str, object]", instance).items():
            if finds(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, others: object, instance: object, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = {
        name: value
        for name, value in cast("dict[str, object]", instance).items()
        if name not in named and not any(finds(pattern, name) for pattern in patterns)
    }
    if isinstance(others, bool):
        if extra and not others:
            yield ValidationError(f"properties {sorted(extra)} were not expected")
        return
    for name, value in extra.items():
        yield from validator.descend(value, others, path=name)
