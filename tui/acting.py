"""The keys that act on a run, through its control; each says what it cannot do and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.screen import Screen

from flowforge.control.detaching import NotBegun
from flowforge.errors import FlowForgeError
from flowforge.tui.dialogs import ConfirmDialog, LineDialog
from flowforge.view.acting import num_running_in, restarts
from flowforge.view.limits import LIMIT_QUESTIONS, ends_the_run, limit_of, limit_rows
from flowforge.view.printable import printable
from flowforge.view.texts import value_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.control.detaching import Detached
    from flowforge.tui.opened_run import OpenedRun
    from flowforge.view.acting import Restart
    from flowforge.view.control import Action, RunControl, RunLimits
    from flowforge.view.limits import LimitName
    from flowforge.view.run_view import RunView
    from flowforge.view.sources import Link


@dataclass
class RunBegun(Message):
    """A new run has begun, which the user wants to see."""

    run_id: str


class Acting(Screen[None]):
    """Part of `RunScreen`, which owns the attributes."""

    opened: OpenedRun
    view: RunView
    link: Link

    @property
    def _chosen_path(self) -> str:
        raise NotImplementedError

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
        """Cancel the chosen step or branch alone, once it is confirmed."""
        control = self._control_for("cancel step")
        if control is None:
            return
        path = self._chosen_path
        num_running = num_running_in(self.view, path)
        if not num_running:
            self.notify("the chosen step does not run; C cancels the whole run")
            return

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self._order(control, "cancel step", path)

        inside = f" {num_running} steps of it are stopped." if num_running > 1 else ""
        self.app.push_screen(
            ConfirmDialog(
                f"Cancel {path}?",
                f"It fails, and what it wrote is lost.{inside} Its 'catch' and the joins around it "
                "say what follows; with neither, the run fails. C cancels the whole run.",
            ),
            answered,
        )

    def action_cancel_run(self) -> None:
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

    def action_limits(self) -> None:
        """Show what the run may use and has used, and change what is chosen."""
        control = self._control_for("limits")
        if control is None:
            return
        told = self._limits(control, {})
        if told is None:
            return
        rows = limit_rows(told)

        def chosen(row: str | None) -> None:
            for name, shown in rows.items():
                if shown == row:
                    self._ask_limit(control, name, told)

        self.app.push_screen(LineDialog("Limits of the run", choices=[*rows.values()]), chosen)

    def _ask_limit(self, control: RunControl, name: LimitName, told: RunLimits) -> None:
        def given(text: str | None) -> None:
            if text is None:
                return
            limit = limit_of(name, text)
            if limit == "unreadable":
                self.notify(f"no limit: {text!r}", severity="warning", markup=False)
            elif ends_the_run(name, limit, told):

                def answered(is_yes: bool | None) -> None:
                    if is_yes:
                        self._limits(control, {name: limit})

                self.app.push_screen(
                    ConfirmDialog(
                        "That much is used already: end the run?",
                        f"It is cancelled; 'flowforge resume {self.opened.name}' can go on with it "
                        "and begins without limits.",
                    ),
                    answered,
                )
            elif self._limits(control, {name: limit}) is not None:
                self.notify("the limit holds from now on")

        self.app.push_screen(LineDialog(LIMIT_QUESTIONS[name]), given)

    def _limits(self, control: RunControl, changes: Mapping[str, float | None]) -> RunLimits | None:
        try:
            return control.limits(changes)
        except FlowForgeError as error:
            self.notify(str(error), severity="error", markup=False)
            return None

    def action_answer(self) -> None:
        """Answer the chosen question, or the one that waits longest."""
        if not self.view.questions:
            self.notify("nothing waits for an answer")
            return
        control = self._control_for("answer")
        if control is None:
            return
        waiting = self.view.questions
        chosen = next((one for one in waiting if one.path == self._chosen_path), waiting[0])
        question = chosen.question
        if question is None:
            return
        shown = "" if question.show is None else value_text(question.show)

        def answered(text: str | None) -> None:
            if text is not None:
                self._order(control, "answer", question.path, text)

        title = f"{question.path}: {question.prompt}"
        self.app.push_screen(LineDialog(title, choices=question.choices, shown=shown), answered)

    def action_retry(self) -> None:
        """Offer what can be run again, and begin what is chosen in a process of its own."""
        begin = self.opened.begin
        offers = restarts(self.view, self.link, self.opened.name, self._chosen_path)
        if begin is None:
            self.notify("this can only be watched: it is in no journal")
            return
        if not offers:
            self.notify("choose a step that has ended: a run is run again from there")
            return

        def chosen(label: str | None) -> None:
            offer = next((one for one in offers if one.label == label), None)
            if offer is not None:
                self.notify(f"beginning: flowforge {' '.join(offer.arguments)}", markup=False)
                self.run_worker(lambda: self._begin(begin, offer), thread=True)

        self.app.push_screen(
            LineDialog("Run again", choices=[offer.label for offer in offers]), chosen
        )

    def _begin(self, begin: Callable[[Sequence[str]], Detached | NotBegun], offer: Restart) -> None:
        """In a thread: models take their time to load."""
        begun = begin(offer.arguments)
        self.app.call_from_thread(self._begun, begun)

    def _begun(self, begun: Detached | NotBegun) -> None:
        if isinstance(begun, NotBegun):
            self.notify(printable(begun.said.strip()), severity="error", timeout=20, markup=False)
        elif begun.run_id == self.opened.name:
            self.notify("it goes on")
        else:
            self.app.post_message(RunBegun(begun.run_id))
