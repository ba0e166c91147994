"""The server's application: routes, and what stands before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flowforge.serving.access_log import GONE, AccessLog
from flowforge.serving.answering import Answering
from flowforge.serving.event_stream import ClientGoneError
from flowforge.serving.failures import Failure, failure_of, not_found, told_back
from flowforge.serving.gatekeeper import Gatekeeper, response_of
from flowforge.serving.metrics import CONTENT_TYPE
from flowforge.serving.openapi import docs_page, openapi_document
from flowforge.serving.run_routes import RunRoutes
from flowforge.serving.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from flowforge.serving.runs import Runs
    from flowforge.serving.service import Service

    Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, runs: Runs) -> ASGIApp:
    """The application of one service and the runs of its workflows."""
    answering, tokens, about = Answering(service), Tokens(service), _About(service)
    of_runs = RunRoutes(service, runs)
    endpoints: list[tuple[str, str, Endpoint]] = [
        ("POST", "/v1/chat/completions", answering.chat),
        ("POST", "/v1/completions", answering.completions),
        ("GET", "/v1/models", about.models),
        ("GET", "/v1/models/{model:path}", about.model),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("POST", "/v1/tokenize", tokens.tokenize),
        ("POST", "/v1/detokenize", tokens.detokenize),
        ("GET", "/v1/workflows", of_runs.workflows),
        ("GET", "/v1/workflows/{name}", of_runs.workflow),
        ("POST", "/v1/workflows/{name}/runs", of_runs.begin),
        ("GET", "/v1/runs", of_runs.runs),
        ("GET", "/v1/runs/{run_id}", of_runs.run),
        ("GET", "/v1/runs/{run_id}/events", of_runs.events),
        ("POST", "/v1/runs/{run_id}/answers", of_runs.answer),
        ("POST", "/v1/runs/{run_id}/cancel", of_runs.cancel),
        ("GET", "/health", about.health),
        ("GET", "/metrics", about.metrics),
        ("GET", "/openapi.json", about.openapi),
        ("GET", "/docs", about.docs),
    ]
    routes = [_route(service, path, method, one) for method, path, one in endpoints]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _tell_http},
    )
    app.router.redirect_slashes = False
    guarded: ASGIApp = Gatekeeper(app, service.keys, service.admission)
    logged: ASGIApp = AccessLog(guarded, service.counts, app)
    if not service.settings.cors_origins:
        return logged
    # Outermost, because a browser's question before the question has no key.
    return CORSMiddleware(
        logged,
        allow_origins=service.settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["Retry-After"],
    )


class _About:
    """What a server says of itself."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        names = self._service.settings.names
        return JSONResponse({"object": "list", "data": [self._told(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        name: str = request.path_params["model"]
        self._service.require_model(name)
        return JSONResponse(self._told(name))

    async def health(self, _: Request) -> Response:
        """GET /health: whether requests are answered."""
        service = self._service
        status = "ok"
        if service.pulse.is_stalled:
            status = "stalled"
        elif service.admission.is_draining:
            status = "draining"
        told = {"status": status, "active": service.admission.num_active}
        return JSONResponse(told, 200 if status == "ok" else 503)

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        text = self._service.metrics.text()
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(openapi_document())

    async def docs(self, _: Request) -> Response:
        """GET /docs."""
        return Response(docs_page(), media_type="text/html")

    def _told(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._service.started_at,
            "owned_by": "flowforge",
            "max_model_len": self._service.backend.capacity,
        }


def _route(service: Service, path: str, method: str, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGoneError:
            # A response that nobody gets.
            request.scope["state"]["is_gone"] = True
            return Response(status_code=GONE)
        except Exception as error:
            # The top of a request: what it failed by is logged, and told as far as it is anyone's.
            service.log_failure(error)
            return response_of(failure_of(error))

    return Route(path, answer, methods=[method])


async def _tell_http(request: Request, error: Exception) -> Response:
    """What no route took: an unknown path, or a method that it does not have."""
    assert isinstance(error, HTTPException)
    method, path = request.method, told_back(request.url.path)
    if error.status_code == 404:
        return response_of(not_found(f"there is no {method} {path}", "unknown_url").failure)
    allowed = (error.headers or {}).get("Allow", "")
    message = f"{method} is not a method of {path}"
    if allowed:
        message += f", which has {allowed}"
    if error.status_code != 405:
        message = error.detail
    failure = Failure(error.status_code, message, code="method_not_allowed", allowed=allowed)
    return response_of(failure)
