"""One line for each request, without what was said in it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.routing import Match

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from flowforge.serving.metrics import ServerCounts

_logger = logging.getLogger("flowforge.access")

GONE = 499
"""The status under which a client is counted that left before its answer."""


@dataclass(slots=True)
class _Exchange:
    status: int = 0
    started_at_s: float = field(default_factory=time.monotonic)


class AccessLog:
    """Middleware: counts requests and logs them. Paths are told as their routes, never queries."""

    def __init__(self, app: ASGIApp, counts: ServerCounts, routes: Starlette) -> None:
        self._app = app
        self._counts = counts
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange()
        state: dict[str, Any] = scope.setdefault("state", {})

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if state.get("is_gone"):
                self._counts.num_gone += 1
                exchange.status = GONE
            self._tell(scope, state, exchange)

    def _tell(self, scope: Scope, state: dict[str, Any], exchange: _Exchange) -> None:
        path = self._path_of(scope)
        self._counts.requests[path, exchange.status] += 1
        cost = state.get("cost")
        tokens = "" if cost is None else f" {cost.prompt_tokens}+{cost.completion_tokens} tokens"
        client = scope.get("client") or ("-", 0)
        _logger.info(
            "%s %s %s %s %d %.3fs%s",
            client[0],
            state.get("client") or "-",
            scope["method"],
            path,
            exchange.status,
            time.monotonic() - exchange.started_at_s,
            tokens,
        )

    def _path_of(self, scope: Scope) -> str:
        """The route, so that no path that a client makes up is counted by itself."""
        for route in self._routes.routes:
            match, _ = route.matches(scope)
            if match is not Match.NONE:
                return str(getattr(route, "path", "other"))
        return "other"
