"""Text with `{name}` holes: template and values arrive apart and meet once.

A value is never read as template text again. A text stays as it is; numbers, booleans, lists,
dicts, dataclasses and pydantic models are written as JSON; None is an error. `{{` and `}}` are
braces.
"""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.flows.values import json_value
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.json_values import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_BRACES_HELP = "write '{{' and '}}' for braces, or pass the text as a value of its own"


class FilledPrompt(str):
    """A text that knows where values stand in it. places: start and end of each."""

    places: tuple[tuple[int, int], ...]

    def __new__(cls, text: str, places: tuple[tuple[int, int], ...]) -> FilledPrompt:
        """The text with its places."""
        made = super().__new__(cls, text)
        made.places = places
        return made

    def __reduce__(self) -> tuple[type[FilledPrompt], tuple[str, tuple[tuple[int, int], ...]]]:
        """How it is copied."""
        return FilledPrompt, (str(self), self.places)


def render_prompt(template: str, values: Mapping[str, object]) -> FilledPrompt:
    """The text, every hole filled. Raises WorkflowError WF602 when a hole and a value differ."""
    parts: list[str] = []
    places: list[tuple[int, int]] = []
    used: set[str] = set()
    num_chars = 0
    for literal, hole in _parse(template):
        parts.append(literal)
        num_chars += len(literal)
        if hole is None:
            continue
        if hole not in values:
            otherwise = f"pass {hole}=…; {_BRACES_HELP}"
            raise WorkflowError(
                "WF602",
                f"the prompt has a hole {{{hole}}} and no value for it",
                help=did_you_mean(hole, values, otherwise),
            )
        used.add(hole)
        text = _text(hole, values[hole])
        parts.append(text)
        places.append((num_chars, num_chars + len(text)))
        num_chars += len(text)
    unused = [name for name in values if name not in used]
    if unused:
        raise WorkflowError(
            "WF602",
            f"the prompt has no hole for the value {unused[0]!r}",
            help=f"write {{{unused[0]}}} where it belongs, or leave the value out",
        )
    return FilledPrompt("".join(parts), tuple(places))


def _parse(template: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the hole that follows it."""
    try:
        fields = list(Formatter().parse(template))
    except ValueError as error:
        raise WorkflowError(
            "WF602", f"the prompt's braces do not match: {error}", help=_BRACES_HELP
        ) from error
    parts: list[tuple[str, str | None]] = []
    for literal, hole, spec, conversion in fields:
        if hole is not None and (not hole.isidentifier() or spec or conversion):
            shown = hole + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise WorkflowError(
                "WF602",
                f"a hole must be a plain name, got {{{shown[:60]}}}",
                help=f"work the value out in Python and pass it; {_BRACES_HELP}",
            )
        parts.append((literal, hole))
    return parts


def _text(hole: str, value: object) -> str:
    if value is None:
        raise WorkflowError(
            "WF602",
            f"the value of {{{hole}}} is None",
            help="pass what to write instead of it",
        )
    try:
        jsonable = json_value(value)
    except ValueError as problem:
        raise WorkflowError(
            "WF602",
            f"the value of {{{hole}}} cannot be written: {problem}",
            help="pass a text, or what JSON has a form for",
        ) from problem
    return value if isinstance(value, str) else json_text(jsonable)
