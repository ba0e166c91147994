"""Answers that are judged by more than their mask holds them to, and are asked for again."""

from __future__ import annotations

from flowforge.language.program import Retry

# The first try and three more.
_TRIES = Retry(4, 0.0, 1.0, 0.0, "none", False, frozenset({"WF413"}))


def relaxed_retry(retry: Retry | None) -> Retry:
    """The retry that is asked for; else tries for answers that break their schema."""
    return _TRIES if retry is None else retry
