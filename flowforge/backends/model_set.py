"""The models of a run, wherever they are: on this process's engine, on servers, behind routes."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.to_thread

from flowforge.backends.elsewhere import is_elsewhere
from flowforge.backends.kept_prefixes import keep_prefixes
from flowforge.backends.page_maps import Paged
from flowforge.backends.protocol import BackendStatistics
from flowforge.backends.remote.backend import RemoteBackend, UnknownMeter, open_remote
from flowforge.backends.revisions import revision_of
from flowforge.backends.routing.route import ENGINE
from flowforge.backends.routing.router import Router
from flowforge.language.remote_models import REMOTE, ROUTE
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.language.remote_models import RemoteModel
    from flowforge.language.token_meter import TokenMeter

    OpenEngines: TypeAlias = Callable[[str | None], AbstractAsyncContextManager[Backend]]
    """Opens the engine on a model of this machine, and on others that are asked for."""


@asynccontextmanager
async def open_models(
    model: str | None,
    elsewhere: Elsewhere,
    open_engines: OpenEngines,
) -> AsyncGenerator[Backend]:
    """The backend of a run whose own model is `model`.

    open_engines: opens the engine on a model of this machine. That is done at once where the run's
    own model is one, and otherwise when a step first asks for one. Raises EngineError when the
    own model cannot be had, WorkflowError WF512 for one that is declared nowhere.
    """
    if model is not None:
        elsewhere.require(model)
    if elsewhere.is_empty:
        async with open_engines(model) as engines:
            yield engines
        return
    async with AsyncExitStack() as stack:
        # Last to be opened and first to be left: what it runs uses all that is below.
        models = ModelSet(model, elsewhere, stack, open_engines)
        if elsewhere.needs_own:
            await models.open_own()
        async with open_task_group() as tasks:
            models.serve_in(tasks)
            try:
                yield models
            finally:
                tasks.cancel_scope.cancel()


class ModelSet:
    """A backend of models in several places; made by `open_models`."""

    def __init__(
        self,
        own: str | None,
        elsewhere: Elsewhere,
        stack: AsyncExitStack,
        open_engines: OpenEngines,
        engines: Backend | None = None,
    ) -> None:
        """stack: where what is opened later is closed. engines: those that are open already."""
        self._own = own
        self._elsewhere = elsewhere
        self._stack = stack
        self._open_engines = open_engines
        self._engines = engines
        self._remotes: dict[str, RemoteBackend] = {}
        self._routers: dict[str, Router] = {}
        self._tasks: TaskGroup | None = None
        self._lock = anyio.Lock()

    async def open_own(self) -> None:
        """Have the run's own model ready. Raises EngineError when it cannot be had."""
        if self._own is not None and self._own.startswith(REMOTE):
            await self._remote(self._own)
        elif not is_elsewhere(self._own):
            await self._local()

    def serve_in(self, tasks: TaskGroup) -> None:
        """Where what runs beside requests runs from now on."""
        self._tasks = tasks

    @property
    def name(self) -> str:
        """That of the run's own backend."""
        own = self._own_backend
        return own.name if own is not None else self._own or ENGINE

    @property
    def capacity(self) -> int | None:
        """That of the run's own model, where it is known."""
        own = self._own_backend
        return None if own is None else own.capacity

    @property
    def token_meter(self) -> TokenMeter:
        """That of the run's own model."""
        own = self._own_backend
        return UnknownMeter(self._own or ENGINE) if own is None else own.token_meter

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """See `Backend.open`. Raises WorkflowError WF512 for what is declared nowhere."""
        name = self._own if model is None else model
        if name is not None and name.startswith(ROUTE):
            return await self._router(name).open(system)
        if name is not None and name.startswith(REMOTE):
            return await (await self._remote(name)).open(system=system)
        engines = await self._local()
        return await engines.open(system=system, model=model)

    async def revision_of(self, model: str | None) -> str:
        """See `backends.revisions.Revisioned`; a route's is that of all its models."""
        name = self._own if model is None else model
        if name is not None and name.startswith(ROUTE):
            targets = self._router(name).route.targets
            return f"{name} {[await self._revision_at(target) for target in targets]}"
        if name is not None and name.startswith(REMOTE):
            return await (await self._remote(name)).revision_of(None)
        return await revision_of(await self._local(), model)

    async def _revision_at(self, target: str) -> str:
        if target == ENGINE:
            return await revision_of(await self._local(), None)
        return await self.revision_of(target)

    async def keep_prefixes(self) -> None:
        """See `KeepsPrefixes`."""
        if self._engines is not None:
            await keep_prefixes(self._engines)

    async def page_uses(self) -> str:
        """See `page_maps.Paged`; servers tell nothing of theirs."""
        engines: object = self._engines
        return await engines.page_uses() if isinstance(engines, Paged) else ""

    def statistics(self) -> BackendStatistics:
        """The sums over all that is open."""
        of_each = [remote.statistics() for remote in self._remotes.values()]
        if self._engines is not None:
            of_each.append(self._engines.statistics())
        counters = [one.name for one in fields(BackendStatistics) if one.name != "page_map"]
        sums = {name: sum(getattr(one, name) for one in of_each) for name in counters}
        return BackendStatistics(page_map="", **sums)

    @property
    def _own_backend(self) -> Backend | None:
        if self._own is not None and self._own.startswith(REMOTE):
            return self._remotes.get(self._own)
        return None if is_elsewhere(self._own) else self._engines

    async def _local(self) -> Backend:
        async with self._lock:
            if self._engines is None:
                own = None if is_elsewhere(self._own) else self._own
                self._engines = await self._stack.enter_async_context(self._open_engines(own))
            return self._engines

    async def _remote(self, name: str) -> RemoteBackend:
        self._elsewhere.require(name)
        async with self._lock:
            if name not in self._remotes:
                model = self._elsewhere.models[name.removeprefix(REMOTE)]
                opened = open_remote(model, meter=await _meter_of(model))
                self._remotes[name] = await self._stack.enter_async_context(opened)
            return self._remotes[name]

    def _router(self, name: str) -> Router:
        self._elsewhere.require(name)
        if name not in self._routers:
            assert self._tasks is not None, "set before anything is asked"
            route = self._elsewhere.routes[name.removeprefix(ROUTE)]
            self._routers[name] = Router(route, self._open_on, self._tasks)
        return self._routers[name]

    async def _open_on(self, model: str, system: str | None) -> Conversation:
        if model == ENGINE:
            return await (await self._local()).open(system=system)
        return await self.open(system=system, model=model)


async def _meter_of(model: RemoteModel) -> TokenMeter | None:
    """What counts a server's tokens here. Raises EngineError when its tokenizer cannot be had."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None

    def load() -> TokenMeter:
        from flowforge.engine.model_store import resolve_model
        from flowforge.engine.text.tokenizer import Tokenizer
        from flowforge.language.token_meter import EncodingMeter

        directory = resolve_model(tokenizer).directory
        return EncodingMeter(Tokenizer.from_directory(directory).encode)

    return await anyio.to_thread.run_sync(load)
