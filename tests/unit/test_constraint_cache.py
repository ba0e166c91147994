"""Constraints are compiled once, whoever asks, and refused once."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest

from flowforge.errors import WorkflowError
from flowforge.grammars.constraint_cache import ConstraintCache

if TYPE_CHECKING:
    from flowforge.grammars import CompiledConstraint


def constraint() -> CompiledConstraint:
    """A stand-in: the cache looks at none of its insides."""
    return cast("CompiledConstraint", object())


def test_a_constraint_is_compiled_once() -> None:
    cache: ConstraintCache[CompiledConstraint] = ConstraintCache()

    first = cache.get("a", constraint)

    assert first is cache.get("a", constraint)
    assert first is cache.find("a")
    assert cache.find("b") is None
    assert first is not cache.get("b", constraint)


def test_a_refusal_is_kept() -> None:
    cache: ConstraintCache[CompiledConstraint] = ConstraintCache()
    asked: list[str] = []

    def refuse() -> CompiledConstraint:
        asked.append("asked")
        raise WorkflowError("WF411", "too large")

    for _ in range(3):
        with pytest.raises(WorkflowError, match="too large"):
            cache.get("a", refuse)

    assert ["asked"] == asked


def test_a_refusal_that_is_raised_again_holds_no_frames_of_before() -> None:
    cache: ConstraintCache[CompiledConstraint] = ConstraintCache()

    def refuse() -> CompiledConstraint:
        raise WorkflowError("WF411", "too large")

    def depth_of_refusal() -> int:
        with pytest.raises(WorkflowError) as caught:
            cache.get("a", refuse)
        return len(traceback.extract_tb(caught.value.__traceback__))

    depth_of_refusal()
    assert depth_of_refusal() == depth_of_refusal()


def test_another_error_is_not_kept() -> None:
    cache: ConstraintCache[CompiledConstraint] = ConstraintCache()

    def break_down() -> CompiledConstraint:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get("a", break_down)

    assert cache.get("a", constraint) is cache.get("a", constraint)


def test_those_used_last_are_kept() -> None:
    cache: ConstraintCache[CompiledConstraint] = ConstraintCache(max_entries=2)
    first, second = cache.get("a", constraint), cache.get("b", constraint)
    cache.get("a", constraint)

    cache.get("c", constraint)

    assert first is cache.get("a", constraint)
    assert second is not cache.get("b", constraint)


def test_threads_that_ask_at_the_same_time_share_one_compilation() -> None:
    cache: ConstraintCache[CompiledConstraint] = ConstraintCache()
    may_end = threading.Event()
    asked: list[str] = []

    def slow() -> CompiledConstraint:
        asked.append("asked")
        may_end.wait(10)
        return constraint()

    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(cache.get, "a", slow) for _ in range(4)]
        may_end.set()
        results = [one.result(timeout=10) for one in waiting]

    assert ["asked"] == asked
    assert 1 == len(set(map(id, results)))
