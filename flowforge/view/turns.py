"""Turns of a recorded request: who says what, with what values of the run put there told apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """One turn. pieces: its text in order; whether a value put the piece there, and the piece."""

    role: str
    pieces: tuple[tuple[bool, str], ...]


def told_turn(turn: Mapping[str, Any]) -> ToldTurn:
    """A turn as `WorkRow.request` has it: a text that is given, or the results of calls."""
    if "results" in turn:
        results = json.dumps(turn["results"], ensure_ascii=False)
        return ToldTurn("tool results", ((True, results),))
    text, at = str(turn["text"]), 0
    pieces: list[tuple[bool, str]] = []
    for start, end in turn.get("values", ()):
        pieces += [(False, text[at:start]), (True, text[start:end])]
        at = end
    return ToldTurn(str(turn["role"]), (*pieces, (False, text[at:])))
