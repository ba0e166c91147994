"""The viewer: an app of its own process that attaches to runs and never holds one up."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from flowforge import environment
from flowforge.control.detaching import begin_detached
from flowforge.errors import FlowForgeError
from flowforge.tui.acting import RunBegun  # noqa: TC001 - textual reads what a handler takes
from flowforge.tui.opened_run import OpenedRun
from flowforge.tui.run_screen import RunScreen
from flowforge.tui.runs_screen import RunsScreen
from flowforge.tui.terminal_app import TerminalApp
from flowforge.view.attached import AttachedRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flowforge.control.detaching import Detached, NotBegun
    from flowforge.journal.reader import JournalReader

NO_COLOR_THEME = "ansi-dark"
"""Its colours are the terminal's own, which Textual can leave out as a whole."""


class ViewerApp(TerminalApp):
    """Shows the runs of a journal, or one run."""

    CSS_PATH = "viewer.tcss"
    TITLE: str | None = "FlowForge"
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", show=False, id="app.quit"),
    ]

    def __init__(
        self,
        journal: JournalReader | None = None,
        *,
        run: OpenedRun | None = None,
        is_ascii: bool = False,
        keymap: Mapping[str, str] | None = None,
    ) -> None:
        """run: shown at once, instead of the list. keymap: binding ids to keys."""
        has_no_color = environment.NO_COLOR.is_set
        # The filter that takes colours out is chosen in here, by this argument.
        super().__init__(ansi_color=True if has_no_color else None)
        if has_no_color:
            self.theme = NO_COLOR_THEME
        self.animation_level = "none"
        self._journal = journal
        self._run = run
        self._is_ascii = is_ascii
        self._keymap_wanted = dict(keymap or {})

    def on_mount(self) -> None:
        """Show the list, and the run on top of it."""
        self.set_class(self._is_ascii, "-ascii")
        self.set_keymap(self._keymap_wanted)
        if self._journal is not None and self._run is None:
            self.push_screen(RunsScreen(self._journal, self.open_run, is_ascii=self._is_ascii))
        if self._run is not None:
            self.push_screen(RunScreen(self._run, is_ascii=self._is_ascii))

    def on_run_begun(self, event: RunBegun) -> None:
        """Show a run that was begun from here."""
        self.open_run(event.run_id)

    def open_run(self, run_id: str) -> None:
        """Show a run of the journal on top of the list."""
        if self._journal is None:
            return
        try:
            opened = open_journal_run(self._journal, run_id)
        except FlowForgeError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.push_screen(RunScreen(opened, is_ascii=self._is_ascii))


def open_journal_run(journal: JournalReader, run_id: str) -> OpenedRun:
    """A run of a journal, by its id or the beginning of it. Raises WorkflowError WF701."""
    run = AttachedRun(journal, run_id)

    def begin(arguments: Sequence[str]) -> Detached | NotBegun:
        place = ["--journal", str(journal.path), "--wait-for-answers"]
        return begin_detached(journal.path, [*arguments, *place])

    row = journal.run(run.run_id)
    begun_at = None if row.num_resumes else row.begun.created_at
    return OpenedRun(run.run_id, run, journal, run, begin, begun_at)


def read_keymap(file: Path) -> dict[str, str]:
    """Binding ids to keys from a JSON file; empty where there is none.

    Raises WorkflowError WF712.
    """
    import json

    from flowforge.errors import WorkflowError

    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise WorkflowError("WF712", f"the keymap {str(file)!r} cannot be read: {error}") from error
    if not isinstance(told, dict) or not all(isinstance(keys, str) for keys in told.values()):
        raise WorkflowError(
            "WF712",
            f"the keymap {str(file)!r} must map ids of keys to keys",
            help='for example {"run.quit": "Q"}; ? in the viewer lists the ids',
        )
    return told
