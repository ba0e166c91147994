"""The server that is measured: nothing is tried again, and nothing waits here."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2

from flowforge.backends.remote.server import RemoteServer, client_for, key_of
from flowforge.errors import EngineError, WorkflowError
from flowforge.language.remote_models import RemoteModel, read_remote_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_MOST_AT_A_TIME = 100_000


@asynccontextmanager
async def open_server(
    url: str, model: str | None, api_key: str | None, timeout_s: float
) -> AsyncGenerator[RemoteServer]:
    """The way to a server. model: None asks it for its first.

    Raises WorkflowError WF535 for an address that is none, EngineError EN401, EN404, EN410.
    """
    table: dict[str, object] = {"url": url} if api_key is None else {"url": url, "api_key": api_key}
    found, problems = read_remote_model("server", table)
    if found is None:
        raise WorkflowError(
            "WF535",
            "; ".join(problem.message for problem in problems),
            help="give its address up to and with /v1, as http://localhost:8000/v1",
        )
    wanted = RemoteModel(
        found.url.partition("://")[2],
        found.url,
        model or "",
        api_key=found.api_key,
        timeout_s=timeout_s,
        attempts=1,
        concurrency=_MOST_AT_A_TIME,
    )
    async with client_for(wanted) as client:
        key = key_of(wanted)
        if model is None:
            wanted = await _with_first_model(wanted, client, key)
        yield RemoteServer(wanted, client, key)


async def _with_first_model(
    wanted: RemoteModel, client: httpx2.AsyncClient, key: str | None
) -> RemoteModel:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        response = await client.get(f"{wanted.url}/models", headers=headers)
    except httpx2.HTTPError as error:
        raise EngineError(
            "EN401",
            f"{wanted.url} cannot be reached: {str(error).lower() or type(error).__name__}",
            help="start the server, or correct its address",
        ) from error
    try:
        return replace(wanted, model=str(json.loads(response.text)["data"][0]["id"]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EngineError(
            "EN404",
            f"{wanted.url} lists no model (status {response.status_code})",
            help="name it: --model NAME",
        ) from error
