"""What happens to a request on its way to a model, beside the text that it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from flowforge.backends.protocol import FinishReason, Usage


PromptPart: TypeAlias = tuple[Literal["special", "template", "content"], str]
"""A control token, other words of the chat template, or what a message says."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """It is made into a prompt. parts: what the model reads behind what it has read already."""

    parts: tuple[PromptPart, ...]


@dataclass(frozen=True, slots=True)
class Delayed:
    """A server did not take it, and is asked again after `wait_s`.

    code, reason: of the error that it would otherwise be. attempt: of this request, from 1.
    """

    model: str
    code: str
    reason: str
    wait_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Routed:
    """A route chose a model for it, or the next one after a failure. reason: why this one."""

    route: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Compared:
    """A second model answered it too. similarity: of the answers, 1 where they are the same.

    code: of what the second one failed with; the rest is then absent.
    """

    route: str
    model: str
    similarity: float | None = None
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    code: str | None = None


Notice: TypeAlias = Rendered | Delayed | Routed | Compared
