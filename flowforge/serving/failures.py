"""What a client is told when something goes wrong: status, and a body as the OpenAI API has it.

A status of 5xx, 408, 409 and 429 makes clients try again. So what would fail again for the same
request is a 4xx of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowforge.errors import FlowForgeError, InternalError, WorkflowError
from flowforge.serving.requests import WRONG_TOGETHER

if TYPE_CHECKING:
    from pydantic import ValidationError

_TOO_LONG = "EN202"
_MOST_TOLD_CHARS = 200
_OF_THE_REQUEST = frozenset(
    {"EN201", "EN202", "EN203", "EN210", "EN212", "EN304", "EN306", "EN307"}
)
"""Codes of EngineError that the request brought about: the engine is well."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure as it is told. param: the field that is at fault. retry_after_s: 0 says nothing.

    allowed: methods of the path, for a status of 405.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: int = 0
    allowed: str = ""

    def body(self) -> dict[str, Any]:
        """The body of the response, or of an event of a stream."""
        told = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": told}

    def headers(self) -> dict[str, str]:
        """The headers that it adds."""
        headers = {"retry-after": str(self.retry_after_s)} if self.retry_after_s else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.allowed:
            headers["allow"] = self.allowed
        return headers


class RequestError(Exception):
    """A request that is answered by a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def bad_request(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    """A request that cannot be answered, now or later."""
    return RequestError(Failure(400, message, param=param, code=code))


def not_found(message: str, code: str = "not_found", param: str | None = None) -> RequestError:
    """Something named that is not there."""
    return RequestError(Failure(404, message, param=param, code=code))


def told_back(name: str) -> str:
    """What a client named and nobody knows, in a message: as much of it as tells which it was."""
    return name if len(name) <= _MOST_TOLD_CHARS else f"{name[:_MOST_TOLD_CHARS]}…"


def unavailable(message: str, retry_after_s: int = 1) -> RequestError:
    """The server cannot take the request now."""
    return RequestError(
        Failure(503, message, "server_error", code="unavailable", retry_after_s=retry_after_s)
    )


def failure_of(error: Exception) -> Failure:
    """How any exception is told. What is nobody's fault but ours is told without its details."""
    match error:
        case RequestError(failure=failure):
            return failure
        case WorkflowError():
            return Failure(400, _told(error), code=error.code)
        case FlowForgeError(code=code) if code in _OF_THE_REQUEST:
            name = "context_length_exceeded" if code == _TOO_LONG else code
            return Failure(400, _told(error), code=name)
        case FlowForgeError() if not isinstance(error, InternalError):
            return Failure(500, _told(error), "server_error", code=error.code)
        case _:
            code = error.code if isinstance(error, FlowForgeError) else "IN901"
            message = "the server failed on this request; its log says how"
            return Failure(500, message, "server_error", code=code)


def invalid(error: ValidationError) -> RequestError:
    """A body that is no request of this kind: its first problem, by the field's path."""
    problems = error.errors(include_url=False, include_input=False)
    first, place = problems[0], _place(problems[0]["loc"])
    # Of a field that may be of several kinds there is a problem with each.
    kinds = {
        _KINDS[one["type"]]: None
        for one in problems
        if one["type"] in _KINDS and _place(one["loc"]) == place
    }
    more = len({_place(one["loc"]) for one in problems}) - 1
    if first["type"] == WRONG_TOGETHER:
        place = _place((*first["loc"], str(first.get("ctx", {})["field"])))
    others = f" (and {more} more)" if more else ""
    message = _lowered(first["msg"].removeprefix("Value error, "))
    if first["type"] in _KINDS:
        message = f"input should be {' or '.join(kinds)}"
    return bad_request(f"{place or 'the body'}: {message}{others}", place or None)


_KINDS = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "an array",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "none_required": "null",
    "string_type": "a string",
}
"""Problems of kind, in the words of JSON: the library's own are Python's."""


def _place(location: tuple[int | str, ...]) -> str:
    """`messages[0].content`; pydantic's names of the members of unions are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and not part[0].isupper() and part not in _UNION_MEMBERS:
            text += f".{part}" if text else part
    return text


_UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "list", "dict"})


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _told(error: FlowForgeError) -> str:
    return error.message if error.help is None else f"{error.message}; {error.help}"
