"""Limits of a run in words: as they stand, and as a person gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flowforge.language.durations import seconds_of_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.view.control import RunLimits

LimitName = Literal["concurrency", "max_tokens", "max_time_s"]

LIMIT_QUESTIONS: Mapping[LimitName, str] = {
    "concurrency": "At most so many steps write at one time (a number, or none)",
    "max_tokens": "At most so many tokens in all (a number, or none)",
    "max_time_s": "At most so much time in all (for example 90s, 5m or 2h, or none)",
}
_TITLES: Mapping[LimitName, tuple[str, str]] = {
    "concurrency": ("writing now", ""),
    "max_tokens": ("tokens", ""),
    "max_time_s": ("time", " s"),
}


def limit_rows(told: RunLimits) -> dict[LimitName, str]:
    """A line for each limit, with what is used of it."""
    rows: dict[LimitName, str] = {}
    for name, (title, unit) in _TITLES.items():
        limit = told.limits.get(name)
        at_most = "no limit" if limit is None else f"at most {limit:,g}{unit}"
        rows[name] = f"{title:<12} {told.used.get(name, 0):,.0f}{unit}, {at_most}"
    return rows


def limit_of(name: LimitName, text: str) -> float | Literal["unreadable"] | None:
    """A limit as a person gave it; None takes it away."""
    word = text.strip().lower()
    if word == "none":
        return None
    if name == "max_time_s":
        return seconds_of_text(word) or "unreadable"
    return int(word) if word.isdecimal() and int(word) else "unreadable"


def ends_the_run(name: LimitName, limit: float | None, told: RunLimits) -> bool:
    """Whether a limit is passed already, by which the run is cancelled."""
    return name != "concurrency" and limit is not None and told.used.get(name, 0) >= limit
