"""Bodies of requests: read within limits of size and time, and taken for what they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

import anyio
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from flowforge.language.json_values import kind_of_value
from flowforge.serving.event_stream import ClientGoneError
from flowforge.serving.failures import Failure, RequestError, bad_request, invalid

if TYPE_CHECKING:
    from starlette.requests import Request

    from flowforge.backends.protocol import JsonValue
    from flowforge.serving.settings import ServerSettings

B = TypeVar("B", bound=BaseModel)

_DEEPEST = 200


async def read_body(request: Request, kind: type[B], settings: ServerSettings) -> B:
    """The body as a request of a kind.

    Raises RequestError: 413 before more than the settings allow is in memory, 408 for a client that
    is too slow, 400 for what is no such request. Raises ClientGoneError.
    """
    return parse_body(await read_bytes(request, settings), kind)


async def read_bytes(request: Request, settings: ServerSettings) -> bytes:
    """The body as it is. Raises RequestError 413 and 408, and ClientGoneError."""
    most_bytes, most_s = settings.limits.max_body_bytes, settings.waits.body_s
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    with anyio.move_on_after(most_s) as timer:
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
        except ClientDisconnect:
            raise ClientGoneError from None
    if timer.cancelled_caught:
        raise RequestError(
            Failure(408, f"the body did not come within {most_s:g} s", code="request_timeout")
        )
    return bytes(body)


def parse_body(body: bytes, kind: type[B]) -> B:
    """Bytes as a request of a kind. Raises RequestError 400."""
    try:
        value: object = json.loads(body, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise bad_request("the body is not UTF-8", code="invalid_json") from None
    except RecursionError:
        raise bad_request("the body is nested too deep", code="invalid_json") from None
    except ValueError as error:
        raise bad_request(f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        found = kind_of_value(cast("JsonValue", value))
        raise bad_request(f"the body is {found}, expected an object", code="invalid_json")
    if _depth_exceeds(value, _DEEPEST):
        raise bad_request(f"the body is nested deeper than {_DEEPEST} levels", code="invalid_json")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None


def _depth_exceeds(value: object, most: int) -> bool:
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > most:
            return True
        if isinstance(part, dict):
            pending += [(one, depth + 1) for one in part.values()]
        elif isinstance(part, list):
            pending += [(one, depth + 1) for one in part]
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _too_large(most_bytes: int) -> RequestError:
    # The rest of the body is not read: the connection cannot be used again.
    return RequestError(
        Failure(413, f"the body has more than {most_bytes:,} bytes", code="request_too_large")
    )
