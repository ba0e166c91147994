"""What each step of a program is, as one hash a step, so that a resumed run can tell what changed.

A step's hash covers all that its author wrote of it, blocks included, and nothing of where in the
file it stands. Steps are named by static paths: those of their instances without items, attempts
and visits, as `explore/draft` for `explore[1]/draft#2`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from flowforge.errors import InternalError
from flowforge.journal.contents import digest_of
from flowforge.language.program import Block
from flowforge.runtime.graph import CATCH, FINALLY
from flowforge.runtime.verbs import rules_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.program import JsonValue, Program, Step

_COUNTERS = re.compile(r"\[\d+\]|[#.]\d+")
_UNSEEN = frozenset({"location", "type", "file", "cache_s", "tags"})
"""Fields that say where something stands, what follows from the rest, or where results are from."""


def definitions_of(program: Program) -> dict[str, str]:
    """The hash of every step of a program and of the programs it runs, by static path."""
    return dict(_definitions(program.steps, ""))


def digest_of_part(part: object) -> str:
    """The hash of a piece of a program, as its author wrote it."""
    return digest_of(_written(part))


def static_path(path: str) -> str:
    """The name of a step in `definitions_of`, from the path of an instance or a work of it."""
    return _COUNTERS.sub("", path)


def _definitions(steps: Mapping[str, Step], prefix: str) -> Iterator[tuple[str, str]]:
    for name, step in steps.items():
        path = f"{prefix}{name}"
        yield static_path(path), digest_of(_written(step))
        rules = rules_of(step.verb)
        for body, inner in rules.bodies(step.verb).items():
            yield from _definitions(inner, f"{path}{rules.segment(step.verb, body)}/")
        if step.catch is not None and isinstance(step.catch.body, Block):
            yield from _definitions(step.catch.body.steps, f"{path}{CATCH}/")
        if step.finally_block is not None:
            yield from _definitions(step.finally_block.steps, f"{path}{FINALLY}/")


def _written(part: object) -> JsonValue:
    """What a piece of a program says, as JSON."""
    if part is None or isinstance(part, str | int | float | bool):
        return part
    if is_dataclass(part):
        said = ((one.name, getattr(part, one.name)) for one in fields(part))
        shown: dict[str, JsonValue] = {
            name: _written(value) for name, value in said if name not in _UNSEEN
        }
        return {"is": type(part).__name__, **shown}
    if isinstance(part, Mapping):
        return [[str(name), _written(value)] for name, value in part.items()]
    if isinstance(part, frozenset):
        return [*map(_written, sorted(part, key=str))]
    if isinstance(part, tuple | list):
        return [*map(_written, part)]
    raise InternalError("IN511", f"a program holds {type(part).__name__}, which has no hash")
