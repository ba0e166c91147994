"""A run in progress as its reader sees it, whatever it is a run of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from flowforge.runtime.stream import MAX_WAITING

if TYPE_CHECKING:
    from flowforge.runtime.stream import EventReader

T_co = TypeVar("T_co", covariant=True)


class RunHandle(Protocol[T_co]):
    """Made by `start`; good until the block that started the run ends, events and result longer."""

    def events(self, *, max_waiting: int = MAX_WAITING) -> EventReader:
        """All events of the run, from the first to the terminal one; see `stream` for slow readers.

        max_waiting: events that may wait one by one before texts are coalesced.
        """
        ...

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run's start, as its events count them: without the time it was cut."""
        ...

    async def result(self) -> T_co:
        """Wait for the end. Raises RunFailedError, or RunCancelledError after a cancel."""
        ...

    def cancel_step(self, path: str) -> None:
        """Fail what runs under a path by WF517: a step, a branch or a call. The run goes on.

        `catch`, joins and `on_tool_error` say what follows. Raises WorkflowError WF518.
        """
        ...

    def cancel(self) -> None:
        """End the run early; its terminal event follows when every conversation is closed."""
        ...
