"""The process: listens, and at a signal ends in order.

SIGTERM and SIGINT begin the end. New requests are refused with 503 and /health says so; what is
under way may come to its end for as long as `Waits.drain_s` says; then it is cancelled, and
workflows that are cut can be resumed. A second signal cuts at once.
"""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import anyio
import uvicorn

from flowforge.errors import EngineError
from flowforge.serving.connection import connections_within

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import ASGIApp

    from flowforge.serving.runs import Runs
    from flowforge.serving.service import Service

_logger = logging.getLogger(__name__)

_LAST_WORDS_S = 5
"""How long cut requests may take to tell their clients."""
_MOST_WAITING = 2048
"""Connections that the system keeps until they are taken."""


class _Server(uvicorn.Server):
    """uvicorn, which leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class Server:
    """Serves an application until it is told to end. port: the one it listens on."""

    def __init__(
        self, app: ASGIApp, service: Service, runs: Runs, place: socket.socket | None = None
    ) -> None:
        """place: made by `take_place` of the service's settings; without it one is made here.

        It is closed when all is served. Raises EngineError EN913 where nothing can be listened on.
        """
        settings = service.settings
        self._service = service
        self._runs = runs
        self._listener = place or take_place(settings.host, settings.port)
        with _told(settings.host, settings.port), ExitStack() as unless_it_listens:
            unless_it_listens.callback(self._listener.close)
            # Two sockets may be bound to one port as long as none listens.
            self._listener.listen(_MOST_WAITING)
            unless_it_listens.pop_all()
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=connections_within(settings.waits.body_s),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Whose address a request has is for whoever stands before this server to say.
            proxy_headers=False,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
        self._server = _Server(config)
        self._ending = anyio.Event()
        self._cutting = anyio.Event()

    def end(self) -> None:
        """Begin to end; the second time at once. For the loop's own thread."""
        (self._cutting if self._ending.is_set() else self._ending).set()

    async def wait_started(self) -> None:
        """Return once requests are taken."""
        await self._server.up.wait()

    async def serve(self) -> None:
        """Serve until `end` was called and all is done."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._service.pulse.watch)
            tasks.start_soon(self._drain)
            await self._server.serve(sockets=[self._listener])
            tasks.cancel_scope.cancel()

    async def serve_with_signals(self) -> signal.Signals | None:
        """`serve`, ended by SIGINT and SIGTERM; the signal that began the end."""
        first: list[signal.Signals] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_by_signals, first)
            await self.serve()
            tasks.cancel_scope.cancel()
        return first[0] if first else None

    async def _end_by_signals(self, first: list[signal.Signals]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                first.append(number)
                self.end()

    async def _drain(self) -> None:
        await self._ending.wait()
        admission, runs = self._service.admission, self._runs
        admission.is_draining = True
        drain_s = self._service.settings.waits.drain_s
        _logger.info(
            "ending: %d requests and %d runs may end within %g s",
            admission.num_active,
            runs.num_running,
            drain_s,
        )
        with anyio.move_on_after(drain_s):
            await self._all_over()
        if admission.num_active or runs.num_running:
            _logger.info(
                "ending: %d requests and %d runs are cut; runs can be resumed",
                admission.num_active,
                runs.num_running,
            )
        # Runs first: who follows one gets its last event.
        await runs.cut()
        self._service.cut()
        self._server.should_exit = True

    async def _all_over(self) -> None:
        """Return when nothing is under way, or nothing is waited for any more."""
        async with anyio.create_task_group() as tasks:

            async def wait_to_cut() -> None:
                await self._cutting.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_to_cut)
            await self._runs.wait_over()
            await self._service.admission.wait_over()
            tasks.cancel_scope.cancel()


def take_place(host: str, port: int) -> socket.socket:
    """A socket with an address, which refuses connections as yet. Raises EngineError EN913."""
    with _told(host, port):
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as unless_it_has_one:
            place = unless_it_has_one.enter_context(socket.socket(family, kind, number))
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(address)
            unless_it_has_one.pop_all()
    return place


@contextmanager
def _told(host: str, port: int) -> Generator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EngineError(
            "EN913",
            f"nothing can listen on {host} port {port}: {reason}",
            help="take another --host or --port; --port 0 takes one that is free",
        ) from error
