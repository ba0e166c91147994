"""The progress of a model download on stderr: a bar in a terminal, a line per quarter elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console
    from rich.progress import Progress, TaskID


class DownloadProgress:
    """What `model_store` calls, from any one thread; a context for the bar."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._quarters: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, description: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show how far a download is; the total may be unknown."""
        if self._is_quiet:
            return
        if sys.stderr.isatty():
            self._show_bar(description, done_bytes, total_bytes)
        else:
            self._show_quarter(description, done_bytes, total_bytes)

    def close(self) -> None:
        """Take the bar away; idempotent."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._tasks.clear()

    def _show_bar(self, description: str, done_bytes: int, total_bytes: int | None) -> None:
        if self._bar is None:
            from rich.console import Console

            self._bar = download_bar(Console(stderr=True))
            self._bar.start()
        task = self._tasks.get(description)
        if task is None:
            task = self._tasks[description] = self._bar.add_task(description, total=total_bytes)
        self._bar.update(task, completed=done_bytes, total=total_bytes)

    def _show_quarter(self, description: str, done_bytes: int, total_bytes: int | None) -> None:
        quarter = 4 * done_bytes // total_bytes if total_bytes else 0
        if self._quarters.get(description, -1) >= quarter:
            return
        self._quarters[description] = quarter
        share = f": {25 * quarter} % of {total_bytes / 1e6:,.0f} MB" if total_bytes else ""
        sys.stderr.write(f"{description}{share}\n")
        sys.stderr.flush()


def download_bar(console: Console) -> Progress:
    """What a download shows; one of unknown size moves from side to side."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
