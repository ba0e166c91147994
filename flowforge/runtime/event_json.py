"""Events as JSON objects, one a line: what `--json` prints and recorders keep.

Every object has `seq`, `time_s` and `event`, the fact's name in snake case, and the fact's fields.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Event

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


def event_as_json(event: Event) -> dict[str, JsonValue]:
    """The event as a JSON object. Times are rounded to microseconds."""
    name = _WORD_START.sub("_", type(event.fact).__name__).lower()
    fields: dict[str, JsonValue] = asdict(event.fact)
    return {"seq": event.seq, "time_s": round(event.time_s, 6), "event": name, **fields}
