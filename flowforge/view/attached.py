"""A run of a journal as closely as it can be seen: by its control socket while it goes on.

Where that is not to be had, or is lost, the journal tells what there is: steps without the texts
that are being written, and what became of the run.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from flowforge.backends.protocol import BackendStatistics
from flowforge.control.orders import TIMEOUT_S, send_order, socket_path
from flowforge.errors import EngineError
from flowforge.runtime.event_json import VERSION, event_from_json, is_known, is_readable
from flowforge.runtime.stream import is_terminal
from flowforge.view.control import RunLimits
from flowforge.view.json_lines import JsonLines
from flowforge.view.sources import Batch, JournalSource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.journal.reader import JournalReader
    from flowforge.runtime.events import Event
    from flowforge.view.control import Action
    from flowforge.view.sources import Link

_CHUNK_BYTES = 65_536
_ATTACH_AGAIN_S = 1.0
_COUNTERS = tuple(one.name for one in fields(BackendStatistics))
_ACTIONS: frozenset[Action] = frozenset(
    {"cancel", "cancel step", "pause", "go on", "answer", "limits"}
)


class AttachedRun:
    """A source of events, and the control of the run while it goes on."""

    def __init__(self, journal: JournalReader, run_id: str) -> None:
        """Raises WorkflowError WF701 where there is no such run."""
        self._journal = journal
        self._recorded = JournalSource(journal, run_id)
        self.run_id: str = self._recorded.run_id
        self._live: _Connection | None = None
        self._tried_s = -_ATTACH_AGAIN_S
        self._num_resumes = 0

    @property
    def actions(self) -> frozenset[Action]:
        """See `RunControl`: none once the run cannot be reached."""
        return frozenset() if self._live is None else _ACTIONS

    @property
    def is_paused(self) -> bool:
        """See `RunControl`."""
        return self._live is not None and self._live.is_paused

    def poll(self, budget_s: float) -> Batch:
        """See `EventSource`. Raises EngineError EN708 for a run that tells what is no event."""
        if self._live is None:
            batch = self._recorded.poll(budget_s)
            if batch.link != "live" or not self._attach():
                return batch
            return Batch((), "live", is_new=True)
        batch = self._live.poll(budget_s)
        if self._live.is_lost:
            # The journal knows more: where the run stood at its last commit, and who has it.
            self.close()
            self._recorded = JournalSource(self._journal, self.run_id)
            return Batch(batch.events, batch.link, is_new=True)
        if batch.link == "recorded" and self._goes_on_again():
            self.close()
            self._recorded = JournalSource(self._journal, self.run_id)
            return Batch((), "live", is_new=True)
        return batch

    def order(self, action: Action, *, path: str = "", text: str = "") -> None:
        """See `RunControl`. Raises EngineError EN708 for a run that is lost, or refuses."""
        asked = {"path": path} if action == "cancel step" else {}
        asked |= {"path": path, "text": text} if action == "answer" else {}
        send_order(self._journal.path, self.run_id, order=action, **asked)
        if self._live is not None and action in {"pause", "go on"}:
            self._live.is_paused = action == "pause"

    def limits(self, changes: Mapping[str, float | None]) -> RunLimits:
        """See `RunControl`. Raises EngineError EN708."""
        reply = send_order(self._journal.path, self.run_id, order="limits", **changes)
        return RunLimits(reply["limits"], reply["used"])

    def close(self) -> None:
        """Leave; the run goes on."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _goes_on_again(self) -> bool:
        """Whether a run that was over has been resumed."""
        return self._may_look() and self._num_resumes != self._journal.run(self.run_id).num_resumes

    def _may_look(self) -> bool:
        now = time.monotonic()
        if now - self._tried_s < _ATTACH_AGAIN_S:
            return False
        self._tried_s = now
        return True

    def _attach(self) -> bool:
        if not self._may_look():
            return False
        self._num_resumes = self._journal.run(self.run_id).num_resumes
        try:
            self._live = _Connection(socket_path(self._journal.path, self.run_id))
        except (OSError, EngineError):
            # It has just ended, or takes no orders: the journal is read on, and this tried again.
            return False
        return True


class _Connection:
    """The stream of one run. is_lost: it ended before the run did."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where nobody serves."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.connect(str(path))
            self._socket.sendall(b'{"order": "watch"}\n')
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(0)
        self._lines = JsonLines()
        self._is_over = False
        self._has_ended = False
        self._statistics: BackendStatistics | None = None
        self._elapsed_s: float | None = None
        self.is_paused: bool = False

    @property
    def is_lost(self) -> bool:
        return self._has_ended and not self._is_over

    def poll(self, budget_s: float) -> Batch:
        until = time.monotonic() + budget_s
        events: list[Event] = []
        self._statistics = self._elapsed_s = None
        has_more = True
        while not self._has_ended and time.monotonic() < until:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                has_more = False
                break
            except OSError:
                chunk = b""
            if not chunk:
                self._has_ended = True
                break
            try:
                for told in self._lines.take(chunk):
                    self._take(cast("dict[str, Any]", told), events)
            except (ValueError, KeyError, TypeError) as error:
                raise _not_understood(f"it tells what is no event: {error}") from error
        link: Link = "recorded" if self._is_over else "live"
        return Batch(
            tuple(events),
            link,
            statistics=self._statistics,
            elapsed_s=self._elapsed_s,
            has_more=has_more and not self._has_ended,
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _take(self, told: dict[str, Any], events: list[Event]) -> None:
        if "seq" in told:
            if not is_readable(told):
                raise _not_understood(f"it is of a newer FlowForge, this one reads {VERSION}")
            if is_known(told["event"]):
                event = event_from_json(told)
                events.append(event)
                self._is_over = self._is_over or is_terminal(event.fact)
        elif "state" in told:
            self.is_paused = bool(told["state"]["is_paused"])
            # Runs of older versions do not say it.
            self._elapsed_s = told["state"].get("elapsed_s")
            counted = cast("dict[str, Any]", told["state"]["statistics"])
            known = {name: counted[name] for name in _COUNTERS if name in counted}
            self._statistics = BackendStatistics(**known)


def _not_understood(reason: str) -> EngineError:
    return EngineError(
        "EN708",
        f"the run cannot be watched: {reason}",
        help="use the FlowForge that began the run",
    )
