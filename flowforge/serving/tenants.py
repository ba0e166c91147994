"""What the runs of one key run on: the server's engines, with a KV cache to themselves."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from flowforge.backends.model_set import ModelSet
from flowforge.backends.passing import PassingBackend
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.engines import EngineSet
    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.serving.keys import Key


class TenantBackend(PassingBackend):
    """Engines on which a key's conversations share KV with none of another key."""

    def __init__(self, engines: EngineSet, key: Key) -> None:
        super().__init__(engines)
        self._engines = engines
        self._namespace = namespace_of(key)

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """See `Backend`."""
        return await self._engines.open(system=system, model=model, namespace=self._namespace)


@asynccontextmanager
async def open_tenants(
    engines: EngineSet, elsewhere: Elsewhere
) -> AsyncGenerator[Callable[[Key], Backend]]:
    """What the runs of each key run on: the engines, and models of other servers.

    A route that sends to the engine keeps to the key's KV too. Each key has connections of its own.
    """
    by_salt: dict[str, ModelSet] = {}
    async with AsyncExitStack() as stack, open_task_group() as tasks:

        def backend_of(key: Key) -> Backend:
            tenant = TenantBackend(engines, key)
            if elsewhere.is_empty:
                return tenant
            salt = namespace_of(key).salt
            if salt not in by_salt:
                models = ModelSet(None, elsewhere, stack, lambda _: nullcontext(tenant), tenant)
                models.serve_in(tasks)
                by_salt[salt] = models
            return by_salt[salt]

        try:
            yield backend_of
        finally:
            tasks.cancel_scope.cancel()


def namespace_of(key: Key, cache_salt: str | None = None) -> Namespace:
    """Who may share KV with a request. cache_salt: parts the requests of a key further.

    A key's salt has no line end, so no two pairs give one text.
    """
    own = key.salt if key.digest else ""
    return Namespace(salt=own if cache_salt is None else f"{own}\n{cache_salt}")
