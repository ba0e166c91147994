"""The spans of one run, folded from its events: run → step → generation or tool call.

Names and attributes are those of OpenTelemetry's conventions for generative AI (`gen_ai.*`); what
these have no word for is `flowforge.*`. Tokens are told of generations alone, so that summing them
over a trace counts each once. No prompt, answer, argument or result is in a span.

Each span's parent is given by its path and never by a context variable, so branches that run side
by side cannot get each other's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from flowforge.runtime.events import (
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepAsked,
    StepCached,
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
    ToolCalled,
    ToolReturned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

    from flowforge.runtime.events import Event, Fact

_CUTS = re.compile(r"[/\[.]")
"""Where a path may be cut so that what remains names what it lies in."""

_OPERATION = "gen_ai.operation.name"
_CHAT: Mapping[str, AttributeValue] = {_OPERATION: "chat", "gen_ai.provider.name": "flowforge"}


@dataclass(slots=True)
class _Open:
    """A span that has not ended. verb: of a step; "tool" for a call that a model made.

    is_generation: the span is of one generation itself, as of a sample. has_samples: generations of
    the step have spans of their own.
    """

    span: Span
    verb: str
    started_ns: int
    is_generation: bool = False
    has_samples: bool = False


class RunSpans:
    """Takes the events of one run in order and begins and ends its spans."""

    def __init__(
        self, tracer: Tracer, clock_ns: Callable[[], int], *, run_id: str | None = None, first: int
    ) -> None:
        """clock_ns: nanoseconds since the epoch. first: number of this process's first event.

        What an earlier process was told has been exported by that one: it makes no spans again.
        """
        self._tracer = tracer
        self._clock_ns = clock_ns
        self._run_id = run_id
        self._first = first
        self._epoch_ns: int | None = None
        self._workflow = ""
        self._unended: dict[str, StepStarted | ToolCalled] = {}
        self._run: Span | None = None
        self._open: dict[str, _Open] = {}

    def take(self, event: Event) -> None:
        """One more event."""
        if isinstance(event.fact, RunStarted):
            self._workflow = event.fact.workflow
        if event.seq < self._first:
            self._take_old(event.fact)
            return
        if self._epoch_ns is None:
            self._epoch_ns = self._clock_ns() - round(event.time_s * 1e9)
        at_ns = self._epoch_ns + round(event.time_s * 1e9)
        if self._run is None:
            self._run = self._begin_run(at_ns)
            for fact in self._unended.values():
                self._take_new(fact, self._run, at_ns)
        self._take_new(event.fact, self._run, at_ns)

    def close(self) -> None:
        """End what is open, as when the stream broke off."""
        if self._run is not None:
            self._end_run(self._clock_ns(), Status(StatusCode.ERROR, "the run broke off"))

    def _take_old(self, fact: Fact) -> None:
        """What an earlier process began and did not end goes on in spans of this one."""
        match fact:
            case StepStarted(path) | ToolCalled(path):
                self._unended.setdefault(path, fact)
            case (
                StepFinished(path)
                | StepFailed(path)
                | StepRetried(path)
                | StepCancelled(path)
                | ToolReturned(path)
            ):
                self._unended.pop(path, None)
            case _:
                pass

    def _take_new(self, fact: Fact, run: Span, at_ns: int) -> None:
        match fact:
            case RunResumed(num_kept):
                run.set_attribute("flowforge.run.num_kept", num_kept)
            case StepStarted(path, verb, continues):
                self._begin_step(path, verb, continues, at_ns)
            case ToolCalled(path, tool):
                self._begin_tool(path, tool, at_ns)
            case ToolReturned(path, _, _, is_error):
                failure = Status(StatusCode.ERROR, "the call failed") if is_error else None
                self._end(path, at_ns, status=failure)
            case StepSkipped(path):
                self._parent(path).add_event("skipped", {"flowforge.step.path": path}, at_ns)
            case StepAsked(path):
                self._span(path).add_event("asked", timestamp=at_ns)
            case StepCached(path):
                self._span(path).set_attribute("flowforge.step.is_cached", True)
            case StepCaught(path, code):
                self._span(path).add_event("caught", {"error.type": code}, at_ns)
            case StepFinished(path):
                self._end(path, at_ns, _cost(fact))
            case StepFailed(path, code, message) | StepRetried(path, code, message):
                self._end(path, at_ns, {"error.type": code}, Status(StatusCode.ERROR, message))
            case StepCancelled(path):
                self._end(path, at_ns, {"flowforge.cancelled": True})
            case RunFinished():
                self._end_run(at_ns)
            case RunFailed(failures):
                run.set_attribute("error.type", failures[0].code if failures else "_OTHER")
                told = "; ".join(f"{one.path}: {one.message}" for one in failures)
                self._end_run(at_ns, Status(StatusCode.ERROR, told))
            case RunCancelled():
                run.set_attribute("flowforge.cancelled", True)
                self._end_run(at_ns)
            case _:
                pass  # RunStarted has begun the run; texts are no spans.

    def _begin_run(self, at_ns: int) -> Span:
        attributes: dict[str, AttributeValue] = {
            _OPERATION: "invoke_workflow",
            "gen_ai.workflow.name": self._workflow,
            "flowforge.run.resumed": self._first > 0,
        }
        if self._run_id is not None:
            attributes["flowforge.run.id"] = self._run_id
        name = f"invoke_workflow {self._workflow}"
        return self._tracer.start_span(name, None, SpanKind.INTERNAL, attributes, (), at_ns)

    def _begin_step(self, path: str, verb: str, continues: str | None, at_ns: int) -> None:
        known = self._open.get(path)
        if known is not None and known.verb == "tool":
            return  # A call that a model made is told of as one, and as a step too.
        above = self._open.get(path[: path.rfind("[")]) if path.endswith("]") else None
        if above is not None and above.verb == "gen":
            above.has_samples = True
            span = self._start(path, "chat", _CHAT, above.span, at_ns)
            self._open[path] = _Open(span, verb, at_ns, is_generation=True)
            return
        attributes: dict[str, AttributeValue] = {"flowforge.step.verb": verb}
        if verb == "call":
            attributes[_OPERATION] = "execute_tool"
        if continues is not None:
            attributes["flowforge.step.continues"] = continues
        span = self._start(path, f"step {path}", attributes, self._parent(path), at_ns)
        self._open[path] = _Open(span, verb, at_ns)

    def _begin_tool(self, path: str, tool: str, at_ns: int) -> None:
        attributes = {_OPERATION: "execute_tool", "gen_ai.tool.name": tool}
        span = self._start(path, f"execute_tool {tool}", attributes, self._parent(path), at_ns)
        self._open[path] = _Open(span, "tool", at_ns)

    def _start(
        self, path: str, name: str, told: Mapping[str, AttributeValue], parent: Span, at_ns: int
    ) -> Span:
        attributes = {"flowforge.step.path": path, **told}
        within = set_span_in_context(parent)
        return self._tracer.start_span(name, within, SpanKind.INTERNAL, attributes, (), at_ns)

    def _end(
        self,
        path: str,
        at_ns: int,
        told: Mapping[str, AttributeValue] | None = None,
        status: Status | None = None,
    ) -> None:
        ended = self._open.pop(path, None)
        if ended is None:
            return  # Cancelled before it began, or a call whose end its function has told.
        is_generation = ended.is_generation
        of_generation = {key: one for key, one in (told or {}).items() if key.startswith("gen_ai.")}
        if ended.verb == "gen" and not is_generation and not ended.has_samples:
            leaf = self._start(path, "chat", _CHAT, ended.span, ended.started_ns)
            _finish(leaf, at_ns, told or {}, status)
        own = {key: one for key, one in (told or {}).items() if key not in of_generation}
        _finish(ended.span, at_ns, (told or {}) if is_generation else own, status)

    def _end_run(self, at_ns: int, status: Status | None = None) -> None:
        assert self._run is not None
        for path in reversed(list(self._open)):
            self._end(path, at_ns)
        _finish(self._run, at_ns, {}, status)
        self._run = None

    def _span(self, path: str) -> Span:
        found = self._open.get(path)
        return self._parent(path) if found is None else found.span

    def _parent(self, path: str) -> Span:
        """The innermost open span around a path."""
        for cut in reversed([found.start() for found in _CUTS.finditer(path)]):
            around = path[:cut]
            if around in self._open:
                return self._open[around].span
        assert self._run is not None
        return self._run


def _cost(finished: StepFinished) -> dict[str, AttributeValue]:
    told: dict[str, AttributeValue] = {}
    if finished.finish_reason is not None:
        told["gen_ai.response.finish_reasons"] = (finished.finish_reason,)
    usage = finished.usage
    if usage is not None:
        told["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        told["gen_ai.usage.output_tokens"] = usage.generated_tokens
        told["gen_ai.usage.cache_read.input_tokens"] = usage.reused_tokens
        told["gen_ai.response.time_to_first_chunk"] = usage.ttft_s
    return told


def _finish(
    span: Span, at_ns: int, told: Mapping[str, AttributeValue], status: Status | None
) -> None:
    for key, value in told.items():
        span.set_attribute(key, value)
    if status is not None:
        span.set_status(status)
    span.end(at_ns)
