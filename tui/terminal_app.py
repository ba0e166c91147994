"""An app on a terminal that may be slow, and in a process that may be told to end at any time."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from textual.app import App

from flowforge.tui.paced_driver import PacedDriver

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.screen import Screen
    from textual.timer import Timer, TimerCallback

FRAME_S = 0.1
"""The least time between two frames."""

_MAX_FRAME_S = 5.0
_SLOW_S = 0.05
"""A terminal that takes this long for a frame gets fewer of them."""

_PARENT_LOOK_S = 0.2
_LEAVE_S = 2.0
"""How long the end may take: a terminal may take nothing any more."""


class TerminalApp(App[None]):
    """Draws when the terminal has taken the last frame: keys never wait behind old pictures.

    SIGTERM and SIGHUP end it, and so does the end of the process that began it, with the terminal
    as it was before.
    """

    def __init__(self, *, ansi_color: bool | None) -> None:
        super().__init__(driver_class=PacedDriver, ansi_color=ansi_color)
        self.frame_s: float = FRAME_S
        self.ended_by: signal.Signals | None = None
        self.has_lost_parent: bool = False
        self._begun_by = os.getppid()
        self._held_at_s: float | None = None
        self._is_stale = False

    def set_timer(
        self,
        delay: float,
        callback: TimerCallback | None = None,
        *,
        name: str | None = None,
        pause: bool = False,
    ) -> Timer:
        """See `MessagePump`; the timer comes also when this process was not let run meanwhile.

        Textual leaves out ticks that are late, and of a timer that comes once this is the only one.
        By such a timer it waits for a resize to end, and would never look at a size again.
        """
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        # Its task has not begun, so it has not looked yet.
        timer._skip = False  # pyright: ignore[reportPrivateUsage]
        return timer

    # -- a slow terminal ---------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether nothing is drawn, because the terminal is behind."""
        return self._held_at_s is not None

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if self.is_held and renderable is not None:
            # It is left out, and nothing remembers what it was.
            self._is_stale = True
        super()._display(screen, renderable)
        driver = self._driver
        if isinstance(driver, PacedDriver) and not self.is_held and driver.is_behind():
            self._held_at_s = time.monotonic()
            self._begin_batch()

    def _terminal_is_free(self) -> None:
        if self._held_at_s is None:
            return
        is_slow = time.monotonic() - self._held_at_s > _SLOW_S
        self.frame_s *= 2 if is_slow else 0.8
        self.frame_s = min(_MAX_FRAME_S, max(FRAME_S, self.frame_s))
        self._held_at_s = None
        self._end_batch()
        if self._is_stale:
            self._is_stale = False
            self.screen.refresh()
        self.screen.check_idle()

    # -- its end -----------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Listen to what ends the process."""
        driver = self._driver
        if not isinstance(driver, PacedDriver):
            return
        driver.on_free = self._terminal_is_free
        driver.on_gone = lambda: self._leave(signal.SIGHUP)
        for number in (signal.SIGTERM, signal.SIGHUP):
            driver.on_signal(number, self._leave)
        self.set_interval(_PARENT_LOOK_S, self._look_for_parent)

    def _look_for_parent(self) -> None:
        if os.getppid() != self._begun_by and not self.has_lost_parent:
            self.has_lost_parent = True
            # The terminal is the shell's again: whoever sets it then is stopped otherwise.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
            self._leave(signal.SIGHUP)

    def _leave(self, number: signal.Signals) -> None:
        if self.ended_by is None:
            self.ended_by = number
            last = threading.Timer(_LEAVE_S, os._exit, (128 + number,))
            last.daemon = True
            last.start()
            self.exit()
