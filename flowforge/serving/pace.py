"""How often streams are told what is new: at every token while there are few, together while many.

An event takes a tenth of a millisecond or more of a core, of the server and again of its client. On
a machine whose cores compute the model, every step then waits for the events of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from flowforge.serving.admission import Admission

_FEW_REQUESTS = 4
_EVENTS_PER_S = 120
_MOST_REST_S = 0.1
_WHOLE_REST_S = 1.0


class Pace:
    """The pace of all streams of a server."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def rest_s(self, now_s: float | None = None) -> float:
        """How long a stream that was told something gathers what comes: until the next beat.

        now_s: by the loop's clock, which is read if it is None. All streams have the same beats, so
        that the loop is woken once for all of them. Between two is at most a tenth of a second, in
        which nobody reads more than a few words.
        """
        between_s = (self._admission.num_active - _FEW_REQUESTS) / _EVENTS_PER_S
        if between_s <= 0:
            return 0.0
        between_s = min(between_s, _MOST_REST_S)
        return between_s - (anyio.current_time() if now_s is None else now_s) % between_s


def until_it_ends() -> float:
    """The rest of who wants an answer whole: the end of a text ends it."""
    return _WHOLE_REST_S
