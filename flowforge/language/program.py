"""The checked, typed program: what the checker makes of a workflow file and the runtime runs.

Everything is frozen. A program has no undefined names, no cycles and no unknown keys: the checker
has seen to that, and the runtime trusts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.errors import Location
    from flowforge.language.expressions import Expression
    from flowforge.language.templates import Template
    from flowforge.language.types import Type

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


@dataclass(frozen=True, slots=True)
class Required:
    """Marks an input without a default."""


@dataclass(frozen=True, slots=True)
class Input:
    """A value the caller gives. schema: JSON Schema the value must satisfy."""

    name: str
    type: Type
    schema: Mapping[str, JsonValue]
    default: JsonValue | Required
    location: Location


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """What the author said about sampling; `None` where the file is silent."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gen:
    """The model writes. from_step: the step whose conversation this one continues.

    json_schema: the answer is JSON under this schema and the step's value is the parsed JSON;
    without it the value is the text.
    """

    from_step: str | None
    system: Template | None
    user: Template | None
    sampling: SamplingSpec
    json_schema: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class ForEach:
    """A block once per item, results in item order; at most `limit` items at a time."""

    variable: str
    items: Expression
    limit: int | None
    body: Block


Verb: TypeAlias = Gen | ForEach


@dataclass(frozen=True, slots=True)
class Step:
    """A name and exactly one verb.

    needs: names of sibling steps that must have a value, or a conversation, before this one starts;
    steps named inside a block's body count for the block.
    """

    name: str
    verb: Verb
    needs: frozenset[str]
    type: Type
    location: Location


@dataclass(frozen=True, slots=True)
class Block:
    """Steps under one lexical scope, in file order. result: the step or expression it yields."""

    steps: Mapping[str, Step]
    result: Expression


@dataclass(frozen=True, slots=True)
class Output:
    """A named result of the program."""

    name: str
    value: Expression
    location: Location


@dataclass(frozen=True, slots=True)
class Program:
    """A whole workflow."""

    name: str
    file: str
    inputs: Mapping[str, Input]
    steps: Mapping[str, Step]
    outputs: Mapping[str, Output]
