"""What passes between the core, which decides, and the shell, which acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import GenerateRequest, GenerationDone
    from flowforge.errors import FlowForgeError
    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import Failure


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Fork the conversation of path `continues`, or open one, and let the model write."""

    path: str
    continues: str | None
    system: str | None
    user: str | None
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class StopGeneration:
    """Cancel the generation of `path`; its end is reported as `Stopped` or what it came to."""

    path: str


@dataclass(frozen=True, slots=True)
class ReleaseConversation:
    """Close the conversation of `path`, if there is one: no step will continue it."""

    path: str


Command: TypeAlias = StartGeneration | StopGeneration | ReleaseConversation


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the run; the first report."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The conversation of `path` exists: what it was forked from is no longer needed by it."""

    path: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The generation of `path` is done."""

    path: str
    done: GenerationDone


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation of `path` failed."""

    path: str
    error: FlowForgeError


@dataclass(frozen=True, slots=True)
class Stopped:
    """The generation of `path` was cancelled."""

    path: str


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Somebody wants the run to end."""


Report: TypeAlias = Begin | Opened | Answered | Failed | Stopped | CancelRun


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The run has its outputs."""

    outputs: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Broken:
    """Steps failed; all of them, in the order they were found."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was cancelled before it had its outputs."""


Outcome: TypeAlias = Succeeded | Broken | Cancelled


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and to tell, each in order. outcome: set once, when nothing is in flight."""

    commands: tuple[Command, ...]
    facts: tuple[Fact, ...]
    outcome: Outcome | None
