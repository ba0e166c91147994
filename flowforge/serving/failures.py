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
    from collections.abc import Mapping

    from pydantic import ValidationError

_TOO_LONG = "EN202"
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
    first = error.errors(include_url=False, include_input=False)[0]
    place = _place(first["loc"])
    if first["type"] == WRONG_TOGETHER:
        place = _place((*first["loc"], str(first.get("ctx", {})["field"])))
    more = error.error_count() - 1
    others = f" (and {more} more)" if more else ""
    message = first["msg"].removeprefix("Value error, ")
    return bad_request(f"{place or 'the body'}: {_lowered(message)}{others}", place or None)


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


def with_param(error: FlowForgeError, params: Mapping[str, str]) -> Exception:
    """The error, told with the field of the request that brought it about, where it is known."""
    failure = failure_of(error)
    param = params.get(error.code)
    if param is None or failure.status != 400:
        return error
    return RequestError(Failure(400, failure.message, failure.type, param=param, code=failure.code))
