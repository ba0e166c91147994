"""Schemas put together by `not`, `if` and `oneOf`, in terms of `anyOf` and `allOf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lowering.closed_objects import closes_inside
from flowforge.grammars.lowering.negation import negate
from flowforge.grammars.lowering.values import all_of, any_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.lowering.walk import SchemaWalk
    from flowforge.grammars.schema_dialect import JsonValue

    Schema = dict[str, JsonValue]

_MAX_NEGATED_BRANCHES = 8
_NO_NEGATION = "what it excludes cannot be said by what is allowed"


def lower_combinations(
    walk: SchemaWalk, schema: Schema, path: Path, *, closes: bool
) -> Iterator[JsonValue]:
    """What must hold because of them. closes: whether the schema is closed by itself."""
    if "not" in schema:
        complement = negate(schema["not"], walk.references)
        if complement is None:
            walk.leave_out(path, "not", _NO_NEGATION)
        else:
            yield walk.lower_open(complement, (*path, "not"))
    if "if" in schema and schema.keys() & {"then", "else"}:
        yield _conditional(walk, schema, path)
    branches = schema.get("oneOf")
    if isinstance(branches, list):
        inside = closes_inside(schema, "oneOf", closes=closes)
        yield _one_of(walk, schema, branches, path, closes=inside)


def _conditional(walk: SchemaWalk, schema: Schema, path: Path) -> JsonValue:
    condition = schema["if"]
    complement = negate(condition, walk.references)
    if complement is None:
        walk.leave_out(path, "if", "when it does not hold cannot be said by what is allowed")
        return True
    then, otherwise = (
        walk.lower(schema[keyword], (*path, keyword), closes=False) if keyword in schema else True
        for keyword in ("then", "else")
    )
    where = (*path, "if")
    holds = [walk.lower_open(condition, where), then]
    holds_not = [walk.lower_open(complement, where), otherwise]
    if then is True:
        holds = [True] if otherwise is True else holds
    return any_of([all_of(holds), all_of(holds_not)])


def _one_of(
    walk: SchemaWalk, schema: Schema, branches: list[JsonValue], path: Path, *, closes: bool
) -> JsonValue:
    lowered = [
        walk.lower(branch, (*path, "oneOf", idx), closes=closes)
        for idx, branch in enumerate(branches)
    ]
    outer: Schema = {"type": schema["type"]} if "type" in schema else {}
    whole = [all_of([outer, walk.references.resolve(branch)]) for branch in branches]
    if all(
        walk.exclusion.between(one, other)
        for idx, one in enumerate(whole)
        for other in whole[idx + 1 :]
    ):
        return any_of(lowered)
    if len(branches) <= _MAX_NEGATED_BRANCHES:
        complements = [negate(branch, walk.references) for branch in branches]
        if None not in complements:
            where = (*path, "oneOf")
            opened = [walk.lower_open(complement, where) for complement in complements]
            return any_of(
                all_of([one, *opened[:idx], *opened[idx + 1 :]]) for idx, one in enumerate(lowered)
            )
    walk.leave_out(path, "oneOf", "the branches are not seen to exclude each other")
    return any_of(lowered)
