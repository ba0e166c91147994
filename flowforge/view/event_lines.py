"""An event in one line: the words that logs, plain output and the viewer share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from flowforge.runtime.events import (
    RequestDelayed,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    ShadowEnded,
    StepAsked,
    StepCached,
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepRetried,
    StepRouted,
    StepSkipped,
    StepStarted,
    ToolCalled,
    ToolReturned,
)
from flowforge.view.printable import first_cells
from flowforge.view.texts import finished_text

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Fact

Weight = Literal["plain", "good", "warning", "error", "question"]

_MAX_SHOWN_CELLS = 200


def step_line(fact: Fact) -> str | None:
    """A step's start, question or end in one line; None for other events."""
    match fact:
        case StepStarted(path):
            return f"{path}: started"
        case StepFinished(path):
            return f"{path}: {finished_text(fact)}"
        case StepFailed(path, code, message):
            return f"{path}: failed, {message} [{code}]"
        case StepCancelled(path):
            return f"{path}: cancelled"
        case StepSkipped(path):
            return f"{path}: skipped"
        case StepCached(path):
            return f"{path}: its result is in the cache"
        case StepRetried(path, code, message, _, next_path, delay_s):
            return f"{path}: failed, {message} [{code}]; {next_path} in {delay_s:.1f} s"
        case StepCaught(path, code, message):
            return f"{path}: failed and caught, {message} [{code}]"
        case RequestDelayed(path, _, code, reason, wait_s):
            return f"{path}: {reason} [{code}]; asked again in {wait_s:.1f} s"
        case StepAsked(path, prompt):
            return f"{path}: asks, {prompt}"
        case RunResumed(num_kept):
            return f"going on; {num_kept:,} result{'' if num_kept == 1 else 's'} kept"
        case _:
            return None


def event_line(fact: Fact) -> str | None:
    """Any event but texts in one line, what a run and its tools do included."""
    match fact:
        case RunStarted(workflow, _, seed):
            return f"{workflow}: run started, seed {seed}"
        case RunFinished():
            return "run finished"
        case RunFailed(failures):
            return f"run failed: {', '.join(dict.fromkeys(one.path for one in failures))}"
        case RunCancelled():
            return "run cancelled"
        case ToolCalled(path, tool, arguments):
            return f"{path}: calls {tool} {compact(dict(arguments))}"
        case ToolReturned(path, tool, result, is_error):
            return f"{path}: {tool} {'failed, ' if is_error else 'gave '}{compact(result)}"
        case StepRouted(path, route, model, reason):
            return f"{path}: {route} sends it to {model}, {reason}"
        case ShadowEnded(path, _, model, similarity, code=code):
            came = f"failed [{code}]" if similarity is None else f"is {similarity:.0%} the same"
            return f"{path}: the answer of the shadow {model} {came}"
        case _:
            return step_line(fact)


def weight_of(fact: Fact) -> Weight:
    """How much an event asks to be looked at."""
    match fact:
        case StepFailed() | RunFailed():
            return "error"
        case StepRetried() | StepCaught() | StepCancelled() | RunCancelled() | RequestDelayed():
            return "warning"
        case ToolReturned(is_error=True):
            return "warning"
        case StepAsked():
            return "question"
        case StepFinished() | RunFinished():
            return "good"
        case _:
            return "plain"


def compact(value: JsonValue) -> str:
    """A value on one line, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return first_cells(text, _MAX_SHOWN_CELLS)
