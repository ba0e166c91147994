"""Small screens over another one: a question with yes and no, a line of text, an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from flowforge.view.printable import JOINERS, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult


class ConfirmDialog(ModalScreen[bool]):
    """Asks before something is lost. The answer is no unless `y` is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape,enter", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        """consequence: what is lost, or what goes on, said before it happens."""
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        """The question, what follows, and the keys."""
        with Vertical(id="box"):
            yield Static(Text(printable(self._question), style="bold"))
            yield Static(Text(printable(self._consequence)))
            yield Static(Text("y  yes      n  no (also Enter and Escape)", style="dim"))

    def action_answer(self, is_yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(is_yes)


class LineField(Input):
    """A line of text, into which all goes that is typed or pasted."""

    def on_key(self, event: events.Key) -> None:
        """Textual takes joiners for keys that write nothing; scripts and emoji need them."""
        if event.character is not None and event.character in JOINERS:
            self._put(event, event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Textual takes the first line alone."""
        self._put(event, " ".join(event.text.splitlines()))

    def _put(self, event: events.Event, text: str) -> None:
        self.replace(text, *self.selection)
        event.stop()
        event.prevent_default()


class LineDialog(ModalScreen[str | None]):
    """Asks for a line of text; None when it is left by Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Back", id="line.leave")]

    def __init__(self, title: str, *, choices: Sequence[str] = (), shown: str = "") -> None:
        """choices: one of them, or any text where there are none. shown: to be read before."""
        super().__init__()
        self._title = title
        self._choices = choices
        self._shown = shown

    def compose(self) -> ComposeResult:
        """What is asked, and a field or a list."""
        with Vertical(id="box"):
            yield Static(Text(printable(self._title), style="bold"))
            if self._shown:
                yield Static(Text(printable(self._shown)))
            if self._choices:
                yield OptionList(*(Text(printable(choice)) for choice in self._choices))
            else:
                yield LineField()
            yield Static(Text("Enter  send      Escape  not now", style="dim"))

    def on_mount(self) -> None:
        """Let the user type at once."""
        self.query_one(OptionList if self._choices else Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the text."""
        self.dismiss(event.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the choice."""
        self.dismiss(self._choices[event.option_index])

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)
