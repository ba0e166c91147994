"""The page of a run's events, made from their classes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, get_args

from flowforge.reference.docstrings import told_of
from flowforge.reference.markdown import MADE, code, paragraphs, table
from flowforge.runtime.event_json import VERSION, kind_of_type
from flowforge.runtime.events import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMON = {
    "path": "The step instance.",
    "code": "Of the error: [codes](codes.md).",
    "message": "What went wrong.",
    "help": "How to mend it, where that is known.",
    "accounting": "[What the run cost](metrics.md#a-run).",
    "usage": "[What the model's work cost](metrics.md#a-generation).",
    "finish_reason": "Why the answer ended: by itself, cut at `max_tokens`, or closed before it "
    "would have been cut.",
}
"""What fields mean that many events have."""

_TYPES = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "JsonValue": "any value",
    "Mapping[str, JsonValue]": "object",
    "int | str": "integer or text",
    "str | None": "text or null",
    "int | None": "integer or null",
    "float | None": "number or null",
    "tuple[str, ...]": "list of texts",
    "tuple[PromptPart, ...]": "list of pairs of texts",
    "tuple[StepFailed, ...]": "list of objects",
    "tuple[ModelAccounting, ...]": "list of objects",
    "FinishReason | None": '"stop", "length", "closed" or null',
    "Usage | None": "object or null",
    "Accounting": "object",
}
"""Annotations of facts, in JSON's words."""


def events_page() -> str:
    """Every event with its fields."""
    events = "\n\n".join(_event(one) for one in get_args(Fact))
    return f"""# Events

{MADE}

A run is one stream of numbered events. The terminal, the viewer, the journal, `flowforge run
--json` and `GET /v1/runs/ID/events` read the same one. It begins with `run_started` and ends with
exactly one of `run_finished`, `run_failed` and `run_cancelled`. A run that was resumed has the
events of its earlier processes first, without their texts, then `run_resumed`. Every `step_started`
has exactly one end: `step_finished`, `step_failed`, `step_cancelled` or `step_retried`.

A path names a step instance: `explore[1]/draft` is step `draft` in branch 1 of `explore`, `draft#2`
is its second try. Each sample of a `gen` with n > 1 starts and ends as `draft[0]`, `draft[1]` …
inside `draft`.

As JSON an event is an object on a line of its own:

```json
{{"seq": 2, "time_s": 0.4, "event": "step_started", "path": "a", "verb": "gen", "continues": null}}
```

`seq` counts from 0 without a gap; `time_s` is seconds since the start. `run_started` also has
`version`, that of this format: {VERSION}. Under one version events and fields may be added; none is
renamed or removed. With `--json`, `run_started` also has `run_id`, `journal`, `pid` and `socket` of
the run, and the last event its `status`; a run whose process ended before its last event has
`{{"event": "run_interrupted", "status": "interrupted"}}` as its last line.

In Python an event is `ff.Event(seq, time_s, fact)`, and its fact is of the class that is named
with each event below, in `flowforge.runtime.events`.

{events}
"""


def _event(fact: type) -> str:
    told = told_of(fact)
    head = f"## {kind_of_type(fact)}\n\n`{fact.__name__}`: {_lowered(paragraphs(told.summary))}"
    return f"{head}\n\n{table(('field', 'type', 'what it says'), field_rows(fact))}"


def field_rows(owner: type) -> Iterator[tuple[str, str, str]]:
    """A row for each field of a fact, or of what stands in one."""
    told = told_of(owner).fields
    for field in fields(owner):
        meaning = told[field.name] if field.name in told else COMMON[field.name]
        yield code(field.name), _TYPES[str(field.type)], meaning


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
