"""Compiled constraints by what they were compiled from; refusals are kept as well."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

CompiledT = TypeVar("CompiledT")
FoundT = TypeVar("FoundT")

_MAX_ENTRIES = 256


class ConstraintCache(Generic[CompiledT]):
    """What was compiled for one vocabulary; what was used last is kept. Thread-safe.

    A constraint is compiled once, also when several threads ask for it at the same time: the others
    wait. So is one that is refused: a workflow that asks a thousand times pays once.
    """

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[Hashable, CompiledT | FlowForgeError] = OrderedDict()
        self._under_way: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> CompiledT | None:
        """What `key` stands for, if it was compiled; never waits. Raises a kept refusal."""
        with self._lock:
            found = self._entries.get(key)
        return _given(found)

    def get(self, key: Hashable, compile: Callable[[], CompiledT]) -> CompiledT:
        """What `key` stands for: kind, source and options. Compiles it at first, on this thread.

        Raises what `compile` raises, and its FlowForgeErrors again for the same key.
        """
        while True:
            with self._lock:
                found = self._entries.get(key)
                if found is not None:
                    self._entries.move_to_end(key)
                    break
                ready = self._under_way.get(key)
                if ready is None:
                    self._under_way[key] = threading.Event()
            if ready is None:
                return self._compile(key, compile)
            ready.wait()
        return _given(found)

    def _compile(self, key: Hashable, compile: Callable[[], CompiledT]) -> CompiledT:
        entry: CompiledT | FlowForgeError | None = None
        try:
            compiled = entry = compile()
        except FlowForgeError as error:
            entry = error
            raise
        finally:
            with self._lock:
                if entry is not None:
                    self._entries[key] = entry
                    while len(self._entries) > self._max_entries:
                        self._entries.popitem(last=False)
                self._under_way.pop(key).set()
        return compiled


def _given(found: FoundT | FlowForgeError) -> FoundT:
    if isinstance(found, FlowForgeError):
        # Without what it has from before: each raise would add its frames, and keep them alive.
        raise found.with_traceback(None)
    return found
