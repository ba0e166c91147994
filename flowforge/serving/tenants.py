"""What the runs of one key run on: the server's engines, with a KV cache to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.passing import PassingBackend
from flowforge.engine.kv.prefix_tree import Namespace

if TYPE_CHECKING:
    from flowforge.backends.engines import EngineSet
    from flowforge.backends.protocol import Conversation
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


def namespace_of(key: Key, cache_salt: str | None = None) -> Namespace:
    """Who may share KV with a request. cache_salt: parts the requests of a key further.

    A key's salt has no line end, so no two pairs give one text.
    """
    own = key.salt if key.digest else ""
    return Namespace(salt=own if cache_salt is None else f"{own}\n{cache_salt}")
