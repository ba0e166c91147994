"""What goes wrong in a flow: the errors of its own, and where each error came from."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError, Location, WorkflowError
from flowforge.runtime.state import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator


_NOT_THE_AUTHORS = sys.stdlib_module_names | {"flowforge", "anyio", "pydantic", "trio"}


class ChatBusy(WorkflowError):
    """A chat cannot be changed now: it is being written to, or forks of it are open (WF601)."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "WF601",
            f"the chat is busy: {reason}",
            help="wait for it, or work on a fork: async with chat.fork(1) as (branch,)",
        )


class Stopped(WorkflowError):
    """Raised by a flow to end its run without a result, for a reason that its caller is told.

    The run fails with WF605.
    """

    def __init__(self, reason: str) -> None:
        """reason: lower case, without a full stop."""
        super().__init__("WF605", f"the flow stopped: {reason}")


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


def lone_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a group of one, which a caller can catch by its type; else the group."""
    leaves = list(leaves_of(group))
    return leaves[0] if len(leaves) == 1 else group


class FailureLog:
    """Remembers for every error the innermost path it left."""

    def __init__(self) -> None:
        # The errors are kept: an id is only good while its object lives.
        self._origins: dict[int, tuple[str, BaseException]] = {}
        self._told: set[int] = set()

    def blame(self, path: str, error: BaseException) -> None:
        """The error leaves `path`: that is where each leaf of it is from, if not from inside."""
        for leaf in leaves_of(error):
            origin = self._origins.get(id(leaf))
            if origin is not None:
                if origin[0] == path or origin[0].startswith((f"{path}[", f"{path}/")):
                    continue
                # The same object again, from elsewhere: raised anew.
                del self._origins[id(leaf)]
                self._told.discard(id(leaf))
            self._origins[id(leaf)] = (path, leaf)

    def take_untold(self, error: BaseException) -> FlowForgeError | None:
        """The first leaf that no event has told of yet; all of them count as told from here on."""
        leaves = list(leaves_of(error))
        untold = [leaf for leaf in leaves if id(leaf) not in self._told]
        self._told.update(map(id, leaves))
        return as_authors_error(untold[0]) if untold else None

    def failures(self, error: BaseException, otherwise: str) -> tuple[Failure, ...]:
        """All leaves of an error in the order they happened; `otherwise`: the path of the rest."""
        leaves = {id(leaf): leaf for leaf in leaves_of(error)}
        known = {key: origin for key, origin in self._origins.items() if key in leaves}
        rest = {key: (otherwise, leaf) for key, leaf in leaves.items() if key not in known}
        return tuple(
            Failure(path, _placed(as_authors_error(leaf), leaf))
            for path, leaf in {**known, **rest}.values()
        )


def _placed(told: FlowForgeError, raised: BaseException) -> FlowForgeError:
    """The error with the line of the author's code that it came through last, if it has none."""
    if told.location is None:
        for frame, line in traceback.walk_tb(raised.__traceback__):
            module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if module not in _NOT_THE_AUTHORS:
                told.location = Location(frame.f_code.co_filename, line, 1)
    return told


def as_authors_error(error: BaseException) -> FlowForgeError:
    """The error itself, or WF604 around an exception of the author's own code."""
    if isinstance(error, FlowForgeError):
        return error
    wrapped = WorkflowError(
        "WF604",
        f"the flow raised {type(error).__name__}: {error}",
        help="--traceback shows where, and so does the error's __cause__ in Python",
    )
    wrapped.__cause__ = error
    return wrapped
