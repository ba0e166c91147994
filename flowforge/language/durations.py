"""Durations: numbers with units, as in 30s, 500ms, 1h30m."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flowforge.language.fields import place_of
from flowforge.language.yaml_nodes import ScalarNode, kind_of_node

if TYPE_CHECKING:
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry

_UNIT_TO_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
MAX_DURATION_S = 365 * 86_400.0
_UNITS = "units are ms, s, m, h and d: 500ms, 30s, 1h30m"


def duration_of(entry: Entry | None, report: Report) -> float | None:
    """Seconds, above 0; None without the key, or when it is broken."""
    if entry is None:
        return None
    node = entry.value
    if isinstance(node, ScalarNode) and node.value is not None:
        text = node.text.strip()
        if _DURATION.fullmatch(text):
            return _checked(_seconds(text), entry, report)
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        message = f"{entry.key!r} must be a duration with a unit, got {text[:40]!r}"
        help = f"write {entry.key}: {text}s for seconds" if is_number else _UNITS
        report.error("WF120", message, place_of(entry, report), help)
        return None
    message = f"{entry.key!r} must be a duration, got {kind_of_node(node)}"
    report.error("WF120", message, place_of(entry, report), _UNITS)
    return None


def seconds_of_text(text: str) -> float | None:
    """Seconds of '1h30m'; None for a text that is no duration."""
    return _seconds(text) if _DURATION.fullmatch(text) else None


def _seconds(text: str) -> float:
    return sum(float(match[1]) * _UNIT_TO_SECONDS[match[2]] for match in _PART.finditer(text))


def _checked(seconds: float, entry: Entry, report: Report) -> float | None:
    if 0 < seconds <= MAX_DURATION_S:
        return seconds
    message = f"{entry.key!r} must be above 0 and at most 365d, got {seconds:g} s"
    report.error("WF108", message, place_of(entry, report))
    return None
