"""The steps of a flow that run now, each with the scope by which an order can end it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from flowforge.runtime.cancelling import cancelled_by_order, not_running

if TYPE_CHECKING:
    from collections.abc import Generator


class RunningSteps:
    """Owned by one flow run. A path may have several scopes, the outermost first."""

    def __init__(self) -> None:
        self._scopes: dict[str, list[anyio.CancelScope]] = {}

    @contextmanager
    def cancellable(self, path: str) -> Generator[None]:
        """What an order may end. Raises WorkflowError WF517 when one did."""
        with anyio.CancelScope() as scope:
            self._scopes.setdefault(path, []).append(scope)
            try:
                yield
            finally:
                self._scopes[path].remove(scope)
                if not self._scopes[path]:
                    del self._scopes[path]
        if scope.cancelled_caught:
            raise cancelled_by_order(path)

    def cancel(self, path: str) -> None:
        """End what runs under a path, and all inside: so a branch, which is no step itself.

        Raises WorkflowError WF518 where nothing runs.
        """
        names = [name for name in self._scopes if _is_within(name, path)]
        if not names:
            raise not_running(path, self._scopes)
        for name in names:
            for scope in self._scopes[name]:
                scope.cancel()

    def is_cancelled(self, path: str) -> bool:
        """Whether an order wants a step gone, or one that it is inside of."""
        return any(
            scope.cancel_called
            for name, scopes in self._scopes.items()
            if _is_within(path, name)
            for scope in scopes
        )


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}/", f"{outer}["))
