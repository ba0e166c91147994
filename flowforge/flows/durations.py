"""Durations as Python code gives them: seconds, or the texts of the language."""

from __future__ import annotations

from flowforge.errors import WorkflowError
from flowforge.language.durations import MAX_DURATION_S, seconds_of_text


def seconds_of(duration: str | float) -> float:
    """Seconds of '90s', '1h30m' or a number. Raises WorkflowError WF120."""
    seconds = seconds_of_text(duration) if isinstance(duration, str) else float(duration)
    if seconds is None or not 0 < seconds <= MAX_DURATION_S:
        raise WorkflowError(
            "WF120",
            f"expected a duration above 0 and at most 365 days, got {duration!r}",
            help="give seconds, or a text with units: '500ms', '30s', '1h30m'",
        )
    return seconds
