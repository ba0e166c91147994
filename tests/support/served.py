"""A server in a thread of the test's own process, on the spoken model."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx2
from anyio.from_thread import start_blocking_portal
from openai import OpenAI
from spoken_model import Pace, spoken_backend, spoken_engine

from flowforge.backends.hooks import NO_HOOKS, Hooks
from flowforge.serving.app import make_app
from flowforge.serving.keys import KeyRing
from flowforge.serving.runs import open_runs
from flowforge.serving.server import Server
from flowforge.serving.service import Service
from flowforge.serving.settings import ServerSettings
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from anyio.from_thread import BlockingPortal

    from flowforge.backends.protocol import Backend
    from flowforge.engine.statistics import EngineStatistics
    from flowforge.language.program import Program
    from flowforge.serving.recording import Recorder
    from flowforge.serving.runs import RunPlace, Runs

MODEL = "spoken"
_SETTINGS = ServerSettings((MODEL,), port=0)
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a test wants of its server. run_backend: what runs of workflows use."""

    settings: ServerSettings = _SETTINGS
    keys: Sequence[str] = ()
    key_ring: KeyRing | None = None
    hooks: Hooks = NO_HOOKS
    programs: Sequence[Program] = ()
    run_backend: Backend | None = None
    place: RunPlace | None = None
    recorder: Recorder | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens at `url`. Its parts belong to its own thread."""

    url: str
    service: Service
    runs: Runs
    server: Server
    pace: Pace
    portal: BlockingPortal
    ended: list[bool] = field(default_factory=list[bool])

    def statistics(self) -> EngineStatistics:
        """Of the engine, after all that was asked of it."""
        return self.portal.call(self.service.backend.engine.settle)

    def wait_until(self, is_met: Callable[[], bool]) -> None:
        """Look again and again, for as long as any machine may need."""
        end_s = time.monotonic() + _PATIENCE_S
        while not is_met():
            assert time.monotonic() < end_s, "what was waited for did not come"
            time.sleep(0.005)

    def check_nothing_held(self) -> None:
        """No page is held, and the books of the pages are right."""
        self.wait_until(lambda: self.service.admission.num_active == 0)
        assert 0 == self.statistics().kv.pages_held
        self.portal.call(self.service.backend.engine.check_invariants)


@contextmanager
def served(setting: Setting | None = None) -> Generator[Served]:
    """A server as long as the block lasts, and nothing of it held at an end that is no error."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(_serving(setting or Setting())) as parts,
    ):
        url = f"http://127.0.0.1:{parts['server'].port}"
        server = Served(url=url, portal=portal, **parts)
        yield server
        server.pace.release()
        server.check_nothing_held()


def post(server: Served, path: str, **body: Any) -> httpx2.Response:
    """Post a body that asks for the server's model."""
    # Escaped, so that a body may hold what is no character of UTF-8.
    text = json.dumps({"model": MODEL, **body})
    headers = {"content-type": "application/json"}
    return httpx2.post(f"{server.url}{path}", content=text, headers=headers, timeout=60)


def openai_client(server: Served) -> OpenAI:
    """The official client, which asks once; to be closed."""
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@asynccontextmanager
async def _serving(setting: Setting) -> AsyncGenerator[dict[str, Any]]:
    pace = Pace()
    async with spoken_engine(pace) as engine:
        backend = spoken_backend(engine)
        keys = KeyRing(None, setting.keys) if setting.key_ring is None else setting.key_ring
        service = Service(
            backend,
            replace(setting.settings, port=0),
            keys,
            hooks=setting.hooks,
            recorder=setting.recorder,
        )
        of_runs = setting.run_backend or backend
        async with open_runs(setting.programs, lambda _: of_runs, setting.place) as runs:
            server = Server(make_app(service, runs), service, runs)
            async with open_task_group() as tasks:
                tasks.start_soon(server.serve)
                await server.wait_started()
                try:
                    yield {"service": service, "runs": runs, "server": server, "pace": pace}
                finally:
                    pace.release()
                    server.end()
                    server.end()
