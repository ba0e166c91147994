"""Writes to a terminal and knows when it has taken what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from io import TextIOWrapper

    from textual.app import App


class PacedDriver(LinuxDriver):
    """Textual's driver, whose writes can be waited for without waiting."""

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.on_free: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._num_handed = 0
        self._num_taken = 0
        self._is_waited_for = False
        assert self._file is not None, "a viewer is begun on a terminal"
        self._file = cast("TextIOWrapper", _Terminal(self._file, self._taken, self._gone))

    def write(self, data: str) -> None:
        """See `Driver`."""
        self._num_handed += len(data)
        super().write(data)

    def is_behind(self) -> bool:
        """Whether the terminal has not taken all yet; `on_free` is called once it has, if so."""
        if self.on_free is None:
            return False
        # In this order: the other thread looks at the two in the other one.
        self._is_waited_for = True
        if self._num_taken == self._num_handed:
            self._is_waited_for = False
        return self._is_waited_for

    def on_signal(self, number: signal.Signals, listener: Callable[[signal.Signals], None]) -> None:
        """Have the app's loop call a listener when the process gets a signal."""
        self._loop.add_signal_handler(number, listener, number)

    def _taken(self, num: int) -> None:
        self._num_taken += num
        if self._num_taken == self._num_handed and self._is_waited_for:
            self._is_waited_for = False
            self._tell(self.on_free)

    def _gone(self) -> None:
        self._tell(self.on_gone)

    def _tell(self, listener: Callable[[], None] | None) -> None:
        if listener is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(listener)


class _Terminal:
    """What the writing thread writes to. Of a terminal that is gone it is told once."""

    def __init__(
        self, file: TextIO, taken: Callable[[int], None], gone: Callable[[], None]
    ) -> None:
        self._file = file
        self._told_taken = taken
        self._told_gone = gone
        self._is_gone = False

    def write(self, text: str) -> None:
        try:
            if not self._is_gone:
                self._file.write(text)
                self._file.flush()
        except OSError:
            # Nobody is there to be told; the viewer ends.
            self._is_gone = True
            self._told_gone()
        self._told_taken(len(text))

    def flush(self) -> None:
        """Every text is flushed as it is written."""

    def fileno(self) -> int:
        return self._file.fileno()
