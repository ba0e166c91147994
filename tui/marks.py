"""How states look: a mark, a word and a style each, so that none is told by colour alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.view.event_lines import Weight

_MARKS = {
    "running": "●",
    "asking": "?",
    "done": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "skipped": "-",
    "interrupted": "!",
    "unknown": "!",
}
_ASCII_MARKS = {
    "running": "+",
    "asking": "?",
    "done": "=",
    "failed": "x",
    "cancelled": "/",
    "skipped": "-",
    "interrupted": "!",
    "unknown": "!",
}
_STYLES = {
    "running": "cyan",
    "asking": "bold yellow",
    "done": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "skipped": "dim",
    "interrupted": "yellow",
    "unknown": "yellow",
}
_WORDS = {"asking": "waits for you", "unknown": "state unknown"}

WEIGHT_STYLES: dict[Weight, str] = {
    "plain": "",
    "good": "green",
    "warning": "yellow",
    "error": "bold red",
    "question": "bold yellow",
}


def mark_of(state: str, *, is_ascii: bool) -> str:
    """One cell."""
    return (_ASCII_MARKS if is_ascii else _MARKS)[state]


def style_of(state: str) -> str:
    """The style of a state."""
    return _STYLES[state]


def word_of(state: str) -> str:
    """What a state is called."""
    return _WORDS.get(state, state)
