"""Workflows over HTTP: what is served, runs begun, their events as a stream, answers, cancels."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from flowforge.language.program import Required
from flowforge.serving.bodies import read_body
from flowforge.serving.failures import Failure, RequestError, bad_request
from flowforge.serving.requests import AnswerRequest, RunRequest

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from flowforge.language.program import Program
    from flowforge.serving.event_stream import EventWriter
    from flowforge.serving.runs import Runs, ServedRun
    from flowforge.serving.service import Service


class RunRoutes:
    """The endpoints of workflows and their runs. A key sees the runs that it began."""

    def __init__(self, service: Service, runs: Runs) -> None:
        self._service = service
        self._runs = runs

    async def workflows(self, _: Request) -> Response:
        """GET /v1/workflows."""
        served = [_workflow_as_json(program) for program in self._runs.programs.values()]
        return JSONResponse({"object": "list", "data": served})

    async def workflow(self, request: Request) -> Response:
        """GET /v1/workflows/NAME."""
        return JSONResponse(_workflow_as_json(self._runs.program(request.path_params["name"])))

    async def begin(self, request: Request) -> Response:
        """POST /v1/workflows/NAME/runs: 201, and where the run is."""
        name: str = request.path_params["name"]
        self._runs.program(name)
        asked = await read_body(request, RunRequest, self._service.settings)
        run = self._runs.begin(name, asked.inputs, asked.seed, request.state.key)
        return JSONResponse(run.as_json(), 201, {"location": f"/v1/runs/{run.run_id}"})

    async def runs(self, request: Request) -> Response:
        """GET /v1/runs: those of this key."""
        told = [run.as_json() for run in self._runs.of(request.state.key)]
        return JSONResponse({"object": "list", "data": told})

    async def run(self, request: Request) -> Response:
        """GET /v1/runs/ID."""
        return JSONResponse(self._run(request).as_json())

    async def events(self, request: Request) -> Response:
        """GET /v1/runs/ID/events: all events, or those behind the one of Last-Event-ID."""
        run = self._run(request)
        told = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        last = _event_number(told)
        most = _number(run.events[-1]) if run.events else -1
        if last > most:
            what = f"the last event is {most}" if run.events else "there is no event yet"
            raise bad_request(f"Last-Event-ID is {last}, and {what}; the run is {run.status}")
        return self._service.stream_to_its_end(partial(_write_events, run, last))

    async def answer(self, request: Request) -> Response:
        """POST /v1/runs/ID/answers: what a person says to a question of the run."""
        run = self._run(request)
        asked = await read_body(request, AnswerRequest, self._service.settings)
        if run.control is None or run.status != "running":
            raise _conflict(f"the run {run.run_id!r} has no questions: it is {run.status}")
        refusal = run.control.answer(asked.path, asked.text)
        if not refusal["ok"]:
            raise _conflict(refusal["reason"])
        return JSONResponse({"ok": True})

    async def cancel(self, request: Request) -> Response:
        """POST /v1/runs/ID/cancel: it ends soon; once it has, this changes nothing."""
        run = self._run(request)
        run.cancel()
        return JSONResponse(run.as_json(), 202)

    def _run(self, request: Request) -> ServedRun:
        return self._runs.find(request.path_params["run_id"], request.state.key)


async def _write_events(run: ServedRun, last: int, writer: EventWriter) -> None:
    """Send the events behind number `last`, as they come, to the run's last one."""
    idx = next((i for i, one in enumerate(run.events) if _number(one) > last), len(run.events))
    while True:
        while idx < len(run.events):
            event = run.events[idx]
            text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
            if _number(event) > last:
                await writer.send_text(text, kind=str(event["event"]), number=_number(event))
            idx += 1
        if run.status != "running":
            break
        await run.more_than(idx)
    if run.failure is not None:
        await writer.send(run.failure, kind="error")


def _number(event: dict[str, Any]) -> int:
    number: int = event["seq"]
    return number


def _event_number(told: str | None) -> int:
    if told is None:
        return -1
    if not told.isascii() or not told.isdigit() or len(told) > 15:
        raise bad_request(f"Last-Event-ID is {told[:40]!r}, expected the number of an event")
    return int(told)


def _conflict(message: str) -> RequestError:
    # 409 would be tried again by clients, and nothing would have changed.
    return RequestError(Failure(400, message, code="no_such_question"))


def _workflow_as_json(program: Program) -> dict[str, Any]:
    inputs = program.inputs.values()
    required = [one.name for one in inputs if isinstance(one.default, Required)]
    properties = {
        one.name: {
            **one.schema,
            **({} if isinstance(one.default, Required) else {"default": one.default}),
        }
        for one in inputs
    }
    return {
        "id": program.name,
        "object": "workflow",
        "inputs": {"type": "object", "properties": properties, "required": required},
        "outputs": [*program.outputs],
    }
