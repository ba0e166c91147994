"""The filters of `value | filter(arguments)`: pure functions, each with its types.

A filter says what it makes of a type (`infer`, raising FilterTypeError) and of a value (`apply`,
raising EvaluationError).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.evaluation import (
    MAX_TEXT_CHARS,
    EvaluationError,
    json_text,
    kind_of_value,
    text_of_value,
)
from flowforge.language.types import (
    ANY,
    INTEGER,
    NULL,
    STRING,
    Array,
    Object,
    Type,
    display_type,
    join_types,
    may_be,
    may_be_null,
    members_of,
    without_null,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.language.program import JsonValue

_ANY_ARRAY = Array(ANY)
_ANY_OBJECT = Object((), ANY)


class FilterTypeError(Exception):
    """A filter is put on a value, or given an argument, of a type it cannot take."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter. arguments: their types in order; the first `num_required` must be given."""

    name: str
    summary: str
    subject: tuple[Type, ...]
    arguments: tuple[Type, ...]
    num_required: int
    result: Callable[[Type, Sequence[Type]], Type]
    function: Callable[[JsonValue, Sequence[JsonValue]], JsonValue]

    def infer(self, subject: Type, arguments: Sequence[Type]) -> Type:
        """The type of the result. Raises FilterTypeError."""
        self._check_count(len(arguments))
        for wanted, got in zip(self.arguments, arguments, strict=False):
            if not may_be(got, wanted):
                expected, found = display_type(wanted), display_type(got)
                message = f"filter {self.name!r} takes {expected} as argument, got {found}"
                raise FilterTypeError(message)
        self._check_subject(subject)
        return self.result(subject, arguments)

    def apply(self, subject: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
        """The result. Raises EvaluationError."""
        value = self.function(subject, arguments)
        if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
            message = f"filter {self.name!r} makes a text of over {MAX_TEXT_CHARS:,} characters"
            raise EvaluationError("WF403", message, "pass less of the value on")
        return value

    def _check_subject(self, subject: Type) -> None:
        wanted = join_types(self.subject)
        allowed = " or ".join(display_type(type_) for type_ in self.subject)
        if not may_be(subject, wanted):
            message = f"filter {self.name!r} takes {allowed}, got {display_type(subject)}"
            raise FilterTypeError(message)
        if may_be_null(subject) and not may_be(NULL, wanted):
            message = f"filter {self.name!r} takes {allowed}, and the value may be null"
            raise FilterTypeError(message)

    def _check_count(self, num_given: int) -> None:
        if self.num_required <= num_given <= len(self.arguments):
            return
        most = len(self.arguments)
        count = str(most) if most == self.num_required else f"{self.num_required} to {most}"
        noun = "argument" if count == "1" else "arguments"
        raise FilterTypeError(f"filter {self.name!r} takes {count} {noun}, got {num_given}")


def _always(type_: Type) -> Callable[[Type, Sequence[Type]], Type]:
    return lambda _subject, _arguments: type_


def _item_or_null(subject: Type, _arguments: Sequence[Type]) -> Type:
    items = [member.item for member in members_of(subject) if isinstance(member, Array)]
    return join_types([*items, NULL]) if items else ANY


def _values_of(subject: Type, _arguments: Sequence[Type]) -> Type:
    types: list[Type] = []
    for member in members_of(subject):
        if not isinstance(member, Object):
            return _ANY_ARRAY
        types += [field.type if field.is_required else ANY for field in member.fields]
        types += [] if member.extra is None else [member.extra]
    return Array(join_types(types))


def _defaulted(subject: Type, arguments: Sequence[Type]) -> Type:
    if subject in (ANY, NULL):
        return arguments[0] if subject == NULL else ANY
    return join_types([without_null(subject), arguments[0]])


def _mismatch(name: str, wanted: str, value: JsonValue) -> EvaluationError:
    message = f"filter {name!r} takes {wanted}, got {kind_of_value(value)}"
    return EvaluationError("WF404", message)


def _list(name: str, value: JsonValue) -> list[JsonValue]:
    if isinstance(value, list):
        return value
    raise _mismatch(name, "an array", value)


def _object(name: str, value: JsonValue) -> dict[str, JsonValue]:
    if isinstance(value, dict):
        return value
    raise _mismatch(name, "an object", value)


def _string(name: str, value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    raise _mismatch(name, "a string", value)


def _joined(name: str, texts: Sequence[str], separator: str) -> str:
    num_chars = sum(map(len, texts)) + len(separator) * len(texts)
    if num_chars > MAX_TEXT_CHARS:
        message = f"filter {name!r} makes a text of over {MAX_TEXT_CHARS:,} characters"
        raise EvaluationError("WF403", message, "pass less of the value on")
    return separator.join(texts)


def _join(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    separator = _string("join", arguments[0]) if arguments else ""
    return _joined("join", [text_of_value(item) for item in _list("join", value)], separator)


def _bullets(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    # Further lines of an item are indented, so that they stay part of it.
    items = [text_of_value(item).replace("\n", "\n  ") for item in _list("bullets", value)]
    return _joined("bullets", [f"- {item}" for item in items], "\n")


def _lines(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    text = _string("lines", value).replace("\r\n", "\n").removesuffix("\n")
    lines: list[JsonValue] = [*text.split("\n")] if text else []
    return lines


def _len(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    if isinstance(value, str | list | dict):
        return len(value)
    raise _mismatch("len", "a string, an array or an object", value)


def _first(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = _list("first", value)
    return items[0] if items else None


def _last(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = _list("last", value)
    return items[-1] if items else None


def _keys(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return [*_object("keys", value)]


def _values(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return [*_object("values", value).values()]


def _json(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return json_text(value)


def _text(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return text_of_value(value)


def _trim(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return _string("trim", value).strip()


def _upper(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return _string("upper", value).upper()


def _lower(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return _string("lower", value).lower()


def _default(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    return arguments[0] if value is None else value


def _split(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    separator = _string("split", arguments[0])
    if not separator:
        raise EvaluationError("WF404", "filter 'split' takes a separator that is not empty")
    return [*_string("split", value).split(separator)]


_STRINGS = Array(STRING)
_LENGTHS = (STRING, _ANY_ARRAY, _ANY_OBJECT)
_ALL = (
    Filter(
        "join",
        "a list's items as one text, with a separator between them",
        (_ANY_ARRAY,),
        (STRING,),
        0,
        _always(STRING),
        _join,
    ),
    Filter(
        "bullets",
        "a list's items as lines that begin with a dash",
        (_ANY_ARRAY,),
        (),
        0,
        _always(STRING),
        _bullets,
    ),
    Filter(
        "lines",
        "a text's lines as a list, without line ends",
        (STRING,),
        (),
        0,
        _always(_STRINGS),
        _lines,
    ),
    Filter(
        "len",
        "characters of a text, items of a list, fields of an object",
        _LENGTHS,
        (),
        0,
        _always(INTEGER),
        _len,
    ),
    Filter(
        "first",
        "a list's first item, null when it is empty",
        (_ANY_ARRAY,),
        (),
        0,
        _item_or_null,
        _first,
    ),
    Filter(
        "last",
        "a list's last item, null when it is empty",
        (_ANY_ARRAY,),
        (),
        0,
        _item_or_null,
        _last,
    ),
    Filter(
        "keys", "the names of an object's fields", (_ANY_OBJECT,), (), 0, _always(_STRINGS), _keys
    ),
    Filter(
        "values", "the values of an object's fields", (_ANY_OBJECT,), (), 0, _values_of, _values
    ),
    Filter("json", "any value as one line of JSON", (ANY,), (), 0, _always(STRING), _json),
    Filter(
        "text", "a value as it would be written into text", (ANY,), (), 0, _always(STRING), _text
    ),
    Filter(
        "trim", "a text without the white space around it", (STRING,), (), 0, _always(STRING), _trim
    ),
    Filter("upper", "a text in capitals", (STRING,), (), 0, _always(STRING), _upper),
    Filter("lower", "a text in small letters", (STRING,), (), 0, _always(STRING), _lower),
    Filter(
        "default", "the argument where the value is null", (ANY,), (ANY,), 1, _defaulted, _default
    ),
    Filter(
        "split",
        "a text's pieces between separators",
        (STRING,),
        (STRING,),
        1,
        _always(_STRINGS),
        _split,
    ),
)
FILTERS: Mapping[str, Filter] = {filter_.name: filter_ for filter_ in _ALL}
