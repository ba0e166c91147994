"""What happened to a request on its way, as a fact of the step that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from flowforge.backends.notices import Compared, Delayed, Rendered, Routed
from flowforge.runtime.events import RequestDelayed, ShadowEnded, StepPrompted, StepRouted

if TYPE_CHECKING:
    from flowforge.backends.notices import Notice
    from flowforge.runtime.events import Fact


def fact_of(notice: Notice, path: str) -> Fact:
    """The fact. path: of the work that asks."""
    match notice:
        case Rendered(parts):
            return StepPrompted(path, parts)
        case Delayed(model, code, reason, wait_s, attempt):
            return RequestDelayed(path, model, code, reason, wait_s, attempt)
        case Routed(route, model, reason):
            return StepRouted(path, route, model, reason)
        case Compared(route, model, similarity, usage, finish_reason, code):
            return ShadowEnded(path, route, model, similarity, usage, finish_reason, code)
        case _:
            assert_never(notice)
