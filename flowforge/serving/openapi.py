"""The description of the server's API: an OpenAPI document, and a page made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from flowforge.serving.requests import (
    AnswerRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    RunRequest,
    TokenizeRequest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class _Operation:
    """One method of one path. answers: by status, a content type and what it is."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    answers: Mapping[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    refusals: tuple[int, ...] = (401, 429, 503)
    headers: tuple[str, ...] = ()


_JSON = "application/json"
_EVENTS = "text/event-stream"
_OF_BODIES = (400, 401, 404, 408, 413, 429, 500, 503)
_OF_RUNS = (400, 401, 404, 429, 500, 503)


_WHOLE = {200: (_JSON, "The answer; with 'stream' its chunks, as events.")}
_LISTED = {200: (_JSON, "A list.")}
_ONE = {200: (_JSON, "The object.")}
_OPERATIONS = (
    _Operation(
        "post",
        "/v1/chat/completions",
        "The next message of a chat.",
        ChatRequest,
        _WHOLE,
        _OF_BODIES,
    ),
    _Operation(
        "post",
        "/v1/completions",
        "How a text goes on.",
        CompletionRequest,
        _WHOLE,
        _OF_BODIES,
    ),
    _Operation("get", "/v1/models", "The models that are served.", None, _LISTED),
    _Operation("get", "/v1/models/{model}", "One of them.", None, _ONE, _OF_RUNS),
    _Operation(
        "post",
        "/tokenize",
        "A text as tokens; also below `/v1`.",
        TokenizeRequest,
        _ONE,
        _OF_BODIES,
    ),
    _Operation(
        "post",
        "/detokenize",
        "Tokens as text; also below `/v1`.",
        DetokenizeRequest,
        _ONE,
        _OF_BODIES,
    ),
    _Operation("get", "/v1/workflows", "The workflows that are served.", None, _LISTED),
    _Operation(
        "get",
        "/v1/workflows/{name}",
        "One of them: the JSON Schema of its inputs, the names of its outputs.",
        None,
        _ONE,
        _OF_RUNS,
    ),
    _Operation(
        "post",
        "/v1/workflows/{name}/runs",
        "Begin a run.",
        RunRequest,
        {201: (_JSON, "The run, which goes on.")},
        _OF_BODIES,
    ),
    _Operation("get", "/v1/runs", "The runs that this key has begun.", None, _LISTED),
    _Operation("get", "/v1/runs/{run_id}", "How a run stands.", None, _ONE, _OF_RUNS),
    _Operation(
        "get",
        "/v1/runs/{run_id}/events",
        "Its events, from the first or from behind the one of Last-Event-ID.",
        None,
        {200: (_EVENTS, "Events; the last is run_finished, run_failed or run_cancelled.")},
        _OF_RUNS,
        ("Last-Event-ID",),
    ),
    _Operation(
        "post",
        "/v1/runs/{run_id}/answers",
        "Answer a question of the run.",
        AnswerRequest,
        _ONE,
        _OF_BODIES,
    ),
    _Operation(
        "post",
        "/v1/runs/{run_id}/cancel",
        "End the run early.",
        None,
        {202: (_JSON, "The run, which ends soon.")},
        _OF_RUNS,
    ),
    _Operation(
        "get",
        "/health",
        "Whether requests are answered; needs no key.",
        None,
        {200: (_JSON, "They are.")},
        (503,),
    ),
    _Operation(
        "get",
        "/metrics",
        "Metrics for Prometheus.",
        None,
        {200: ("text/plain", "The exposition.")},
        (401,),
    ),
)


@cache
def openapi_document() -> dict[str, Any]:
    """The document. Callers must not change it."""
    bodies = [one.body for one in _OPERATIONS if one.body is not None]
    named, schemas = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF
    )
    components: dict[str, Any] = dict(schemas["$defs"])
    components["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }
    paths: dict[str, dict[str, Any]] = {}
    for one in _OPERATIONS:
        schema = None if one.body is None else named[one.body, "validation"]
        paths.setdefault(one.path, {})[one.method] = _described(one, schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlowForge", "version": version("flowforge")},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(one: _Operation, schema: dict[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {"summary": one.summary, "responses": _responses(one)}
    names = [part[1:-1] for part in one.path.split("/") if part.startswith("{")]
    text = {"type": "string"}
    told["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in names
    ] + [{"name": name, "in": "header", "schema": text} for name in one.headers]
    if schema is not None:
        told["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    if one.path == "/health":
        told["security"] = []
    return told


def _responses(one: _Operation) -> dict[str, Any]:
    error = {_JSON: {"schema": {"$ref": _REF.format(model="Error")}}}
    told: dict[str, Any] = {}
    for status, (kind, what) in one.answers.items():
        content: dict[str, Any] = {kind: {}}
        if one.path.endswith("completions"):
            content[_EVENTS] = {}
        told[str(status)] = {"description": what, "content": content}
    for status in one.refusals:
        content = {_JSON: {}} if one.path == "/health" else error
        told[str(status)] = {"description": _REFUSALS[status], "content": content}
    return told


_REFUSALS = {
    400: "The request cannot be answered, now or later.",
    401: "No valid key.",
    404: "Something named is not there.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    429: "Too many requests of this key; Retry-After says when.",
    500: "The server failed.",
    503: "The server takes no requests now.",
}


ERROR_CODES = (
    ("bad_http", 400, "What came is no HTTP request."),
    ("invalid_json", 400, "The body is no JSON object, or nested too deep."),
    ("no_such_question", 400, "The run does not ask what is answered."),
    ("context_length_exceeded", 400, "Prompt and answer do not fit the model's context."),
    ("content_filter", 400, "A hook blocks the prompt."),
    ("invalid_api_key", 401, "The server wants a key, and this is none of its."),
    ("not_found", 404, "There is no such run or workflow, or it is another key's."),
    ("model_not_found", 404, "The model is not served here."),
    ("unknown_url", 404, "There is no such path."),
    ("method_not_allowed", 405, "The path has other methods; `Allow` says which."),
    ("request_timeout", 408, "The head or the body of the request did not come in time."),
    ("request_too_large", 413, "The body is larger than the server takes."),
    ("rate_limit_exceeded", 429, "Too many requests of this key; `Retry-After` says when."),
    ("unavailable", 503, "The server ends, or has as many requests as it takes."),
)
"""Codes of failures that are not codes of FlowForge: each with its status, and when it is told."""


@cache
def docs_page() -> str:
    """A page that shows the API, without scripts or anything from elsewhere."""
    rows = "\n".join(
        f"<tr><td><code>{one.method.upper()}</code></td><td><code>{escape(one.path)}</code></td>"
        f"<td>{escape(one.summary)}</td><td>{_fields(one.body)}</td></tr>"
        for one in _OPERATIONS
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>FlowForge: HTTP API</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem }}
td {{ border-top: 1px solid #8884; padding: .4rem .8rem .4rem 0; vertical-align: top }}
code {{ font-size: .9em }}
</style></head><body>
<h1>FlowForge: HTTP API</h1>
<p>Keys go into the header <code>Authorization: Bearer KEY</code>, where the server has keys. The
whole description, with every field's schema: <a href="openapi.json">openapi.json</a>.</p>
<table>
{rows}
</table></body></html>
"""


def _fields(body: type[BaseModel] | None) -> str:
    if body is None:
        return ""
    names = [
        f"<b>{escape(field.alias or name)}</b>" if field.is_required() else (field.alias or name)
        for name, field in body.model_fields.items()
    ]
    return f"<small>{', '.join(names)}</small>"
