"""Events as JSON objects, one a line: what `--json` prints and journals keep.

Every object has `seq`, `time_s` and `event`, the fact's name in snake case, and the fact's fields.
That of `run_started` also has `version`, the version of this format: fields and facts may be added
under one version, none is renamed or removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_args

from flowforge.backends.protocol import Usage
from flowforge.runtime.events import (
    Accounting,
    Event,
    Fact,
    ModelAccounting,
    RunStarted,
    StepFailed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.notices import PromptPart
    from flowforge.language.program import JsonValue

VERSION = 1

_Reader = Callable[[Any], Any]

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")

_UNSAFE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What JSON may hold as it is and a terminal obeys, or UTF-8 has no form for."""


def safe_json(value: object, *, indent: int | None = None) -> str:
    """A value as JSON that any terminal and any file takes: what controls stands there escaped.

    Raises ValueError for numbers that JSON has not.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE.sub(lambda hit: f"\\u{ord(hit[0]):04x}", text)


def kind_of(fact: Fact) -> str:
    """A fact's name in snake case."""
    return kind_of_type(type(fact))


def kind_of_type(fact_type: type[Fact]) -> str:
    """The name of all facts of one type."""
    return _KINDS[fact_type]


_KINDS: dict[type, str] = {
    one: _WORD_START.sub("_", one.__name__).lower() for one in get_args(Fact)
}
_FACTS = {kind: one for one, kind in _KINDS.items()}


def event_as_json(event: Event) -> dict[str, JsonValue]:
    """The event as a JSON object. Times are rounded to microseconds."""
    version: dict[str, JsonValue] = (
        {"version": VERSION} if isinstance(event.fact, RunStarted) else {}
    )
    head: dict[str, JsonValue] = {"seq": event.seq, "time_s": round(event.time_s, 6)}
    return {**head, "event": kind_of(event.fact), **version, **fact_as_json(event.fact)}


def fact_as_json(fact: Fact) -> dict[str, JsonValue]:
    """The fields of a fact; values of steps are not copied."""
    return {one.name: _field_as_json(getattr(fact, one.name)) for one in fields(fact)}


def is_readable(line: Mapping[str, JsonValue]) -> bool:
    """Whether such an object is of a version that is known here, as far as it says."""
    version = line.get("version", VERSION)
    return not isinstance(version, int) or version <= VERSION


def event_from_json(line: Mapping[str, JsonValue]) -> Event:
    """The event of such an object. Raises KeyError for a fact that this version does not know."""
    return Event(
        cast("int", line["seq"]),
        cast("float", line["time_s"]),
        fact_from_json(cast("str", line["event"]), line),
    )


def is_known(kind: object) -> bool:
    """Whether this version knows a kind of fact; newer ones may have more."""
    return kind in _FACTS


def fact_from_json(kind: str, told: Mapping[str, Any]) -> Fact:
    """A fact from its name and fields; fields that this version does not know are left out.

    Raises KeyError as `event_from_json` does.
    """
    known, readers = _reading(kind)
    fact: Fact = known(
        **{
            name: told[name] if read is None else read(told[name])
            for name, read in readers
            if name in told
        }
    )
    return fact


@cache
def _reading(kind: str) -> tuple[Callable[..., Fact], tuple[tuple[str, _Reader | None], ...]]:
    """A kind of fact, and how each of its fields is read: as it is, if None."""
    known = _FACTS[kind]
    return known, tuple((one.name, _READERS.get(one.name)) for one in fields(known))


def _usage(told: Any) -> Usage | None:
    return None if told is None else Usage(**told)


def _accounting(told: Any) -> Accounting:
    models: Any = tuple(ModelAccounting(**one) for one in told.get("models", ()))
    return Accounting(**{**told, "models": models})


def _failures(told: Any) -> tuple[StepFailed, ...]:
    return tuple(StepFailed(**failure) for failure in told)


def _parts(told: Any) -> tuple[PromptPart, ...]:
    return tuple((kind, text) for kind, text in told)


_READERS: dict[str, _Reader] = {
    "parts": _parts,
    "usage": _usage,
    "accounting": _accounting,
    "failures": _failures,
    "choices": tuple,
    "interrupted": tuple,
}


def _field_as_json(value: object) -> JsonValue:
    if isinstance(value, Usage | Accounting):
        return asdict(value)
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return [_item_as_json(item) for item in items]
    return cast("JsonValue", value)


def _item_as_json(item: object) -> JsonValue:
    if isinstance(item, StepFailed):
        return asdict(item)
    return [*map(str, cast("tuple[object, ...]", item))] if isinstance(item, tuple) else str(item)
