"""The secrets of a run: read before it begins, and out of everything that it tells."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flowforge.runtime.graph import programs_of
from flowforge.secrets.secret_box import SecretBox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.events import Fact

T = TypeVar("T")


def secrets_of(program: Program, inputs: Mapping[str, JsonValue]) -> SecretBox:
    """The secrets of a program and of those it runs.

    Raises WorkflowError WF310, WF311 for what the environment lacks, WF313 for an input that is
    one of them.
    """
    box = SecretBox.read(name for one in programs_of(program) for name in one.secrets)
    box.require_absent(inputs)
    return box


def masking(box: SecretBox) -> Callable[[Fact], Fact]:
    """Takes the secrets out of what is told."""

    def mask(fact: Fact) -> Fact:
        return fact if box.is_empty else _masked(fact, box)

    return mask


def _masked(told: T, box: SecretBox) -> T:
    if is_dataclass(told) and not isinstance(told, type):
        shown = {one.name: _masked(getattr(told, one.name), box) for one in fields(told)}
        return cast("T", replace(cast("Any", told), **shown))
    if isinstance(told, tuple):
        return cast("T", tuple(_masked(one, box) for one in cast("tuple[object, ...]", told)))
    return box.masked_value(told)
