"""The page of the server's API, made from its OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowforge.reference.markdown import MADE, code, table
from flowforge.serving.openapi import ERROR_CODES, openapi_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]

_MARKS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
)
_WORDS = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "object": "object",
    "array": "list",
    "null": "null",
}
# Bounds of the machine's integers say nothing to a reader.
_LARGE = 2**31 - 1


def http_page() -> str:
    """Every route, its fields, its answers; then the objects that fields hold."""
    document = openapi_document()
    routes = "\n\n".join(
        _route(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas: dict[str, Schema] = document["components"]["schemas"]
    objects = "\n\n".join(
        f"### {name}\n\n{_text(schema.get('description', ''))}\n\n{_fields(schema)}"
        for name, schema in sorted(schemas.items())
        if name != "Error" and not name.endswith("Request")
    )
    codes = table(("code", "status", "when"), ((code(a), str(b), c) for a, b, c in ERROR_CODES))
    return f"""# HTTP

{MADE}

What `flowforge serve` answers; [serving](serving.md) says how to run it. `GET /openapi.json` is the
same as an OpenAPI document. Bodies are JSON. Fields in bold must be there; null is as good as
leaving a field out, and fields that are not here are passed over.

## Headers

{table(("header", "of", "what it says"), _HEADERS)}

## Errors

Every failure has one body, also as the last event of a stream:

```json
{{"error": {{"message": "…", "type": "invalid_request_error", "param": "messages", "code": "…"}}}}
```

`param` is the field that is at fault, or null. `type` is `server_error` where the request is not at
fault. `code` is null where a value of the request does not fit: `message` says which and why. Else
it is one of these or one of [the codes](codes.md) of FlowForge:

{codes}

408, 429, 500 and 503 are worth another try, after `Retry-After` seconds where it is said; the
others would fail again.

{routes}

## Objects

{objects}
"""


_HEADERS = (
    ("`Authorization`", "requests", "`Bearer KEY`; not wanted by a server without keys."),
    (
        "`Last-Event-ID`",
        "`GET /v1/runs/{run_id}/events`",
        "The number of the last event that was read; also as `?last_event_id=`.",
    ),
    ("`Retry-After`", "answers 429, 503", "Seconds after which to try again."),
    ("`WWW-Authenticate`", "answers 401", "`Bearer`."),
    ("`Allow`", "answers 405", "The methods that the path has."),
)


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"## {method.upper()} {path}", operation["summary"]]
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        name = content["schema"]["$ref"].rpartition("/")[2]
        parts.append(_fields(openapi_document()["components"]["schemas"][name]))
    answers = (
        (status, ", ".join(map(code, answer["content"])), answer["description"])
        for status, answer in operation["responses"].items()
    )
    parts.append(table(("status", "content", "what it is"), answers))
    return "\n\n".join(parts)


def _fields(schema: Schema) -> str:
    required = schema.get("required", [])
    properties: dict[str, Schema] = schema.get("properties", {})
    rows = (
        (
            f"**{code(name)}**" if name in required else code(name),
            _type(field),
            _default(field),
            _text(field.get("description", "")),
        )
        for name, field in properties.items()
    )
    return table(("field", "type", "default", "what it says"), rows)


def _type(field: Schema) -> str:
    shown = [one for one in _types(field) if one != "null"]
    return " or ".join(dict.fromkeys(shown)) or "any value"


def _types(field: Schema) -> Iterator[str]:
    if "anyOf" in field:
        for one in field["anyOf"]:
            yield from _types(one)
    elif "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        yield f"[{name}](#{name.lower()})"
    elif "enum" in field:
        yield ", ".join(code(str(one)) for one in field["enum"])
    elif "const" in field:
        yield code(str(field["const"]))
    elif "type" in field:
        word = _WORDS[str(field["type"])]
        if "items" in field:
            word = f"list of: {_type(field['items'])}"
        limits = [
            words.format(field[key])
            for key, words in _MARKS
            if key in field and abs(field[key]) < _LARGE
        ]
        yield ", ".join([word, *limits])


def _default(field: Schema) -> str:
    default = field.get("default")
    return "" if default in (None, {}) else code(str(default).lower())


def _text(description: str) -> str:
    return " ".join(description.split())
