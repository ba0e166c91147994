"""The async face of the engine: one thread steps the model, tasks talk to it without blocking it.

`async with Engine(...)` starts the thread and ends it; all that the engine holds is freed at exit.
Works on asyncio and on trio, twice in one process, without signal handlers, ports or globals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from flowforge.engine.arguments import require
from flowforge.engine.engine_thread import EngineThread
from flowforge.engine.handle import EngineSequence
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from flowforge.engine.core import EngineCore
    from flowforge.engine.prefix_rows import KvPrefix
    from flowforge.engine.statistics import EngineStatistics, NamespaceStatistics


class Engine:
    """Sequences on one model; `engine_for` makes one from files.

    make_core, on_end: see `EngineThread`.
    """

    def __init__(
        self, make_core: Callable[[], EngineCore], on_end: Callable[[], None] | None = None
    ) -> None:
        self._thread = EngineThread(make_core, on_end)
        self._saved: dict[str, EngineSequence] = {}

    async def __aenter__(self) -> Self:
        await self._thread.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._thread.stop()

    @property
    def vocab_size(self) -> int:
        """Ids that a prompt may hold and a generation may give."""
        return self._thread.vocab_size

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can have: the context or the whole pool, whichever is less."""
        return self._thread.capacity

    def open(
        self, token_ids: Sequence[int] = (), *, namespace: Namespace | None = None
    ) -> EngineSequence:
        """A new sequence that starts with these tokens; nothing is computed yet. Close it.

        namespace: only sequences of one namespace share pages; None is the common one.
        Raises EngineError EN203 for an id that is not in the vocabulary, EN210 for a namespace that
        is none.
        """
        tokens = list(token_ids)
        self._thread.require_known(tokens)
        space = Namespace() if namespace is None else namespace
        require(isinstance(space, Namespace), "namespace", "a Namespace", space)
        sequence_id = self._thread.next_id()
        self._thread.post(lambda core: core.open(sequence_id, space))
        sequence = EngineSequence(self._thread, sequence_id, [])
        sequence.append(tokens)
        return sequence

    async def save(self, name: str, sequence: EngineSequence) -> None:
        """Keep a fork of a sequence under a name; replaces what the name stood for.

        Saved prefixes are idle sequences: held while pages last, computed again after that.
        """
        saved = await sequence.fork()
        # Looked up after the wait: others may have saved under this name meanwhile.
        previous = self._saved.get(name)
        self._saved[name] = saved
        if previous is not None:
            await previous.close()

    async def restore(self, name: str) -> EngineSequence:
        """A new sequence that goes on from a saved prefix. Raises EngineError EN207."""
        return await self._saved_sequence(name).fork()

    async def forget(self, name: str) -> None:
        """Let a saved prefix go. Raises EngineError EN207."""
        saved = self._saved_sequence(name)
        del self._saved[name]
        await saved.close()

    async def put_in(self, prefix: KvPrefix) -> int:
        """Cache a prefix that `EngineSequence.take_out` gave, here or on an equal engine.

        Returns how many of its tokens need not be computed any more. Raises ValueError for one of
        another model.
        """
        return await self._thread.ask(lambda core: core.put_in(prefix))

    async def num_cached(self, namespace: Namespace, token_ids: Sequence[int]) -> int:
        """How many of the first of these tokens are cached now."""
        tokens = list(token_ids)
        return await self._thread.ask(lambda core: core.num_cached(namespace, tokens))

    def statistics(self) -> EngineStatistics:
        """As of the last step; cheap, from any thread. Raises EngineError EN206 before start."""
        return self._thread.statistics()

    async def settle(self) -> EngineStatistics:
        """Statistics after all that was asked so far is carried out."""
        return await self._thread.ask(lambda core: core.statistics())

    async def page_uses(self) -> str:
        """A letter for each KV page; see `EngineCore.page_uses`."""
        return await self._thread.ask(lambda core: core.page_uses())

    async def namespace_statistics(self) -> dict[Namespace, NamespaceStatistics]:
        """What each namespace asked for, the 1,024 used last, after all that was asked so far."""
        return await self._thread.ask(lambda core: core.namespace_statistics())

    async def check_invariants(self) -> None:
        """AssertionError if the page bookkeeping is broken. Slow: for tests and doubt."""
        await self._thread.ask(lambda core: core.check_invariants())

    def _saved_sequence(self, name: str) -> EngineSequence:
        saved = self._saved.get(name)
        if saved is None:
            known = ", ".join(sorted(self._saved)) or "none"
            raise EngineError("EN207", f"no prefix is saved as {name!r}; saved are: {known}")
        return saved
