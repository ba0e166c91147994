"""The parts of a step's JSON, told while the model writes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.runtime.events import StepPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.backends.protocol import GenerateRequest, TextDelta
    from flowforge.grammars.json_parts import JsonParts


class StepParts:
    """Of one generation. parts: None for an answer that is no JSON and has none."""

    def __init__(self, path: str, parts: JsonParts | None) -> None:
        self._path = path
        self._parts = parts

    def told_by(self, delta: TextDelta) -> Iterator[StepPart]:
        """What is final by this text."""
        if self._parts is None or delta.is_thought:
            return
        for part in self._parts.push(delta.text):
            yield StepPart(self._path, part.key, part.value)


def parts_of(request: GenerateRequest) -> StepParts:
    """Of a generation that begins."""
    if request.json_schema is None:
        return StepParts(request.label, None)
    from flowforge.grammars.json_parts import JsonParts

    return StepParts(request.label, JsonParts())
