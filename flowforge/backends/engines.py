"""The engines of a run: one a model, each opened when a conversation first asks for its model."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

import anyio

from flowforge.backends.engine import EngineBackend, open_engine_backend
from flowforge.backends.protocol import BackendStatistics
from flowforge.backends.revisions import fingerprint
from flowforge.engine.model_store import Progress, resolve_model, silent
from flowforge.engine.text.messages import Message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from datetime import date
    from pathlib import Path

    from flowforge.backends.protocol import Conversation
    from flowforge.engine.config import EngineConfig
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.language.token_meter import TokenMeter

    OpenEngine: TypeAlias = Callable[[Path], Awaitable[EngineBackend]]
    """Opens an engine on the model in a directory, for as long as the set is open."""


@asynccontextmanager
async def open_engines(
    model: str | Path | None = None,
    *,
    progress: Progress = silent,
    config: EngineConfig | None = None,
    today: date | None = None,
    tool_format: str | None = None,
    kv_folder: Path | None = None,
) -> AsyncGenerator[EngineSet]:
    """Load the model of a run; models that single steps ask for follow when they do.

    Parameters are those of `open_engine_backend`; every engine has the same settings. Raises
    EngineError when the run's own model cannot be had or loaded; frees all memory at exit.
    """
    async with AsyncExitStack() as stack:

        async def open_engine(directory: Path) -> EngineBackend:
            opened = open_engine_backend(
                directory,
                config=config,
                today=today,
                tool_format=tool_format,
                kv_folder=kv_folder,
            )
            return await stack.enter_async_context(opened)

        directory = await _directory_of(model, progress)
        yield EngineSet(directory, await open_engine(directory), open_engine)


class EngineSet:
    """A backend of several models. own: the engine of those who name none."""

    def __init__(self, own_directory: Path, own: EngineBackend, open_engine: OpenEngine) -> None:
        self.own = own
        self._engines = {own_directory: own}
        self._by_name: dict[str, EngineBackend] = {}
        self._open_engine = open_engine
        self._lock = anyio.Lock()

    @property
    def name(self) -> str:
        """As one engine calls itself."""
        return self.own.name

    @property
    def capacity(self) -> int:
        """That of the run's own model."""
        return self.own.capacity

    @property
    def token_meter(self) -> TokenMeter:
        """That of the run's own model."""
        return self.own.token_meter

    async def open(
        self,
        *,
        system: str | None = None,
        model: str | None = None,
        namespace: Namespace | None = None,
    ) -> Conversation:
        """See `Backend.open`. The first to ask for a model waits until it is loaded.

        namespace: see `EngineBackend.open`. Raises EngineError when it cannot be had or loaded, or
        does not fit beside the others.
        """
        engine = self.own if model is None else await self._engine(model)
        if namespace is None:
            # What stands in for an engine, as a script does, knows of none.
            return await engine.open(system=system)
        return await engine.open(system=system, namespace=namespace)

    async def revision_of(self, model: str | None) -> str:
        """What pins a model's answers: its files, how they are computed, and the day it is told."""
        engine = self.own if model is None else await self._engine(model)
        directory = next(path for path, one in self._engines.items() if one is engine)
        files = await anyio.to_thread.run_sync(fingerprint, directory)
        # Templates may print the day, and then an answer is of that day.
        opening = engine.template.render([Message("user", "Hi")])
        told = repr((files, opening, engine.engine.vocab_size))
        digest = blake2b(told.encode(), digest_size=8).hexdigest()
        return f"{directory.name} {digest} in {engine.arithmetic}"

    async def keep_prefixes(self) -> None:
        """See `KeepsPrefixes`."""
        for engine in list(self._engines.values()):
            await engine.keep_prefixes()

    def statistics(self) -> BackendStatistics:
        """The sums over all engines; peaks of pages may have been at different times."""
        of_each = [engine.statistics() for engine in self._engines.values()]
        counters = (one.name for one in fields(BackendStatistics) if one.name != "page_map")
        sums = {name: sum(getattr(one, name) for one in of_each) for name in counters}
        return BackendStatistics(page_map="", **sums)

    async def page_uses(self) -> str:
        """Those of the run's own model."""
        return await self.own.page_uses()

    async def _engine(self, model: str) -> EngineBackend:
        # One at a time: two steps that ask for one model must not both load it.
        async with self._lock:
            if model not in self._by_name:
                directory = await _directory_of(model, silent)
                if directory not in self._engines:
                    self._engines[directory] = await self._open_engine(directory)
                self._by_name[model] = self._engines[directory]
            return self._by_name[model]


async def _directory_of(model: str | Path | None, progress: Progress) -> Path:
    location = await anyio.to_thread.run_sync(lambda: resolve_model(model, progress=progress))
    return location.directory
