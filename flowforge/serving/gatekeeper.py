"""Lets requests in: whose key it is, and whether there is room for one more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flowforge.serving.failures import Failure, RequestError
from flowforge.serving.keys import ANYBODY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from flowforge.serving.admission import Admission
    from flowforge.serving.keys import Key, KeyRing

_logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})
"""For anybody, and also while the server ends."""


class Gatekeeper:
    """Middleware: refuses with 401, 429 and 503, and holds a place for who comes in."""

    def __init__(self, app: ASGIApp, keys: KeyRing, admission: Admission) -> None:
        self._app = app
        self._keys = keys
        self._admission = admission
        self._told_problem: object = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            key = self._key_of(request)
            scope["state"]["client"] = key.name
            scope["state"]["key"] = key
            if scope["path"] == "/metrics":
                await self._app(scope, receive, send)
                return
            with self._admission.admitted(key):
                await self._app(scope, receive, send)
        except RequestError as error:
            await response_of(error.failure)(scope, receive, send)

    def _key_of(self, request: Request) -> Key:
        """Whose key the request has. Raises RequestError 401."""
        if self._keys.is_open:
            return ANYBODY
        key = self._keys.find(request.headers.get("authorization"))
        problem = self._keys.problem
        if problem is not self._told_problem:
            self._told_problem = problem
            if problem is not None:
                _logger.error("%s: the keys of before stay", problem.message)
        if key is None:
            raise RequestError(
                Failure(
                    401,
                    "no valid key: send one as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                )
            )
        return key


def response_of(failure: Failure) -> Response:
    """A failure as a whole response."""
    headers = failure.headers()
    if failure.status in (408, 413):
        # What the client still sends must not be taken for another request.
        headers["connection"] = "close"
    return JSONResponse(failure.body(), failure.status, headers)
