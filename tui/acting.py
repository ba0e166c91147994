"""The keys that act on a run, through its control; each says what it cannot do and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from flowforge.errors import FlowForgeError
from flowforge.tui.dialogs import ConfirmDialog, LineDialog
from flowforge.view.texts import value_text

if TYPE_CHECKING:
    from flowforge.tui.opened_run import OpenedRun
    from flowforge.view.control import Action, RunControl
    from flowforge.view.run_view import RunView


class Acting(Screen[None]):
    """Part of `RunScreen`, which owns the attributes."""

    opened: OpenedRun
    view: RunView

    def _control_for(self, action: Action) -> RunControl | None:
        """The run's control, if it can do this now; else the user is told why not."""
        control = self.opened.control
        if self.view.is_over:
            self.notify("the run is over")
        elif control is None:
            self.notify("this can only be watched: it is no run that goes on")
        elif action not in control.actions:
            self.notify("this run cannot be reached now: it can only be watched")
        else:
            return control
        return None

    @property
    def _is_paused(self) -> bool:
        control = self.opened.control
        return control is not None and control.is_paused

    def _order(self, control: RunControl, action: Action, path: str = "", text: str = "") -> None:
        try:
            control.order(action, path=path, text=text)
        except FlowForgeError as error:
            self.notify(str(error), severity="error", markup=False)

    def action_cancel(self) -> None:
        """Cancel the run, once it is confirmed."""
        control = self._control_for("cancel")
        if control is None:
            return

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self._order(control, "cancel")

        name = self.opened.name
        self.app.push_screen(
            ConfirmDialog(
                f"Cancel run {name}?",
                f"Steps that run are stopped. 'flowforge resume {name}' goes on with it later.",
            ),
            answered,
        )

    def action_pause(self) -> None:
        """Let the run begin nothing new, or go on."""
        control = self._control_for("pause")
        if control is not None:
            self._order(control, "go on" if control.is_paused else "pause")

    def action_answer(self) -> None:
        """Answer the question that waits longest."""
        if not self.view.questions:
            self.notify("nothing waits for an answer")
            return
        control = self._control_for("answer")
        if control is None:
            return
        question = self.view.questions[0].question
        if question is None:
            return
        shown = "" if question.show is None else value_text(question.show)

        def answered(text: str | None) -> None:
            if text is not None:
                self._order(control, "answer", question.path, text)

        title = f"{question.path}: {question.prompt}"
        self.app.push_screen(LineDialog(title, choices=question.choices, shown=shown), answered)

    def action_retry(self) -> None:
        """Say how the chosen step is run again: by a new process."""
        name = self.opened.name
        if not self.view.is_over:
            self.notify("a step is retried once the run is over; its own 'retry' works meanwhile")
        elif self.view.picture.status == "done":
            self.notify(f"to run from a step again: flowforge rerun {name} --from STEP", timeout=10)
        else:
            self.notify(f"to try again what failed: flowforge resume {name}", timeout=10)
