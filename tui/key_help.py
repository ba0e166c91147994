"""The keys as the help shows them, made from the bindings themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.keys import format_key

from flowforge.tui.lines import Line, plain_line

if TYPE_CHECKING:
    from textual.binding import Binding
    from textual.screen import Screen
    from textual.widget import Widget


def help_lines(screen: Screen[None], focused: Widget | None) -> list[Line]:
    """Every key with what it does and the id by which a keymap file changes it."""
    lines: list[Line] = []
    owners: list[tuple[str, Widget]] = []
    if focused is not None:
        owners.append((f"In {focused.border_title or 'this panel'}", focused))
    owners.append(("Everywhere", screen))
    for title, owner in owners:
        lines += [plain_line(title.replace(r"\[", "["), "bold"), *_lines_of(owner), plain_line("")]
    lines += [
        plain_line("^p          commands, themes"),
        plain_line("tab         next panel; shift+tab the one before"),
        plain_line("The mouse selects words; with Shift it is the terminal's own.", "dim"),
        plain_line("Keys are changed by a file: see docs/tui.md.", "dim"),
    ]
    return lines


def _lines_of(owner: Widget) -> list[Line]:
    found: dict[str, tuple[list[str], Binding]] = {}
    for binding in owner._bindings.key_to_bindings.values():  # pyright: ignore[reportPrivateUsage] - no public way
        for one in binding:
            if one.id is not None:
                found.setdefault(one.id, ([], one))[0].append(format_key(one.key))
    return [
        Line(((f"{' '.join(keys):<11} ", "bold"), (f"{_meaning(one):<34}", ""), (name, "dim")))
        for name, (keys, one) in found.items()
    ]


def _meaning(binding: Binding) -> str:
    return binding.tooltip or binding.description
