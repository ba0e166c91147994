"""Answers that are judged by more than their mask holds them to, and are asked for again."""

from __future__ import annotations

from dataclasses import replace

from flowforge.language.program import Retry

_BREAKS_SCHEMA = frozenset({"WF413"})
# The first try and three more.
_TRIES = Retry(4, 0.0, 1.0, 0.0, "none", False, _BREAKS_SCHEMA)


def relaxed_retry(retry: Retry | None) -> Retry:
    """The retry that is asked for, or none, and for answers that break their schema another try."""
    return _TRIES if retry is None else replace(retry, codes=retry.codes | _BREAKS_SCHEMA)
