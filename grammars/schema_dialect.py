"""What JSON Schema is to this house: its values, its pointers, and the validator of one schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema.protocols import Validator

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
# What is only read may be any mapping or sequence.
JsonInput: TypeAlias = (
    "bool | int | float | str | Sequence[JsonInput] | Mapping[str, JsonInput] | None"
)
# RFC 3986, section 3.5.
_SAFE_IN_FRAGMENT = "/?:@-._~!$&'()*+,;="


def draft_of(schema: JsonInput) -> type[Validator]:
    """The validator class of the draft that a schema names, or else of 2020-12."""
    # Here and not above: the import takes longer than `flowforge --help` may.
    from jsonschema.validators import Draft202012Validator, validator_for

    plain = cast("bool | dict[str, object]", to_plain(schema))
    return validator_for(plain, default=Draft202012Validator)


def make_validator(schema: JsonInput) -> Validator:
    """Make the validator of a schema (object or boolean), of the draft it names or else 2020-12.

    References resolve inside the schema only: nothing is ever fetched. Patterns mean what they mean
    to the mask.
    """
    from referencing import Registry

    from flowforge.grammars.judge import judge_of

    judge = judge_of(draft_of(schema))
    plain = cast("bool | dict[str, object]", to_plain(schema))
    return judge(plain, registry=Registry(), format_checker=judge.FORMAT_CHECKER)


def to_plain(value: JsonInput) -> JsonValue:
    """Copy into dicts and lists, which is what validators take for objects and arrays."""
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(inner) for inner in value]
    return value


def to_pointer(path: Iterable[str | int]) -> str:
    """Write a JSON pointer (RFC 6901); "" is the whole."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def to_reference(path: Iterable[str | int]) -> str:
    """Write a JSON pointer as a reference inside its document, '#/…'."""
    return "#" + quote(to_pointer(path), safe=_SAFE_IN_FRAGMENT)
