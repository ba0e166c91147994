"""Where tables and keys of a TOML file stand, which the parser of the library does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

Place: TypeAlias = tuple[str, ...]
"""A table or key of a file: its names, from the outermost."""

_MAX_LINES = 1_000
"""Of one value: each of its lines is parsed with those before it."""


def line_of(content: str, place: Place) -> int:
    """The line, from 1, of a table or key, or of the nearest table around it; 1 where none is.

    content: valid TOML.
    """
    lines = _lines(content)
    return next((lines[around] for around in _outwards(place) if around in lines), 1)


def _outwards(place: Place) -> Iterator[Place]:
    return (place[:length] for length in range(len(place), 0, -1))


def _lines(content: str) -> dict[Place, int]:
    import tomllib

    found: dict[Place, int] = {}
    table: Place = ()
    statement: list[str] = []
    for number, line in enumerate(content.replace("\r\n", "\n").split("\n"), 1):
        statement.append(line)
        if len(statement) > _MAX_LINES:
            break
        try:
            told = tomllib.loads("\n".join(statement))
        except tomllib.TOMLDecodeError:
            continue  # It goes on in the next line.
        first = number - len(statement) + 1
        is_header = statement[0].lstrip().startswith("[")
        statement = []
        inner = list(_places(told))
        for place in inner:
            found.setdefault(place if is_header else table + place, first)
        if is_header:
            table = inner[-1]
    return found


def _places(told: dict[str, object]) -> Iterator[Place]:
    for key, value in told.items():
        yield (key,)
        if isinstance(value, dict):
            for inner in _places(cast("dict[str, object]", value)):
                yield (key, *inner)
