"""KV that outlives its process: what a backend keeps when a run comes to rest, and finds again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import anyio
import anyio.to_thread

from flowforge.errors import EngineError, InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from flowforge.backends.protocol import Backend
    from flowforge.engine.engine import Engine
    from flowforge.engine.handle import EngineSequence
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.prefix_files import PrefixFolder

_logger = logging.getLogger(__name__)


@runtime_checkable
class KeepsPrefixes(Protocol):
    """A backend whose conversations can be gone on with by another process without a prefill."""

    async def keep_prefixes(self) -> None:
        """Write down what is computed of the open conversations, as far as that can be done."""
        ...


async def keep_prefixes(backend: Backend) -> None:
    """Have a backend keep what it can."""
    if isinstance(backend, KeepsPrefixes):
        await backend.keep_prefixes()


class KeptPrefixes:
    """The prefixes of one engine in a folder.

    num_restored: tokens that were found there and need not be computed, so far.
    """

    def __init__(self, engine: Engine, folder: PrefixFolder) -> None:
        self.num_restored: int = 0
        self._engine = engine
        self._folder = folder
        self._read: set[Path] = set()
        self._lock = anyio.Lock()

    async def restore(self, namespace: Namespace, tokens: Sequence[int]) -> None:
        """Have what is kept of these tokens in the cache; a file is read once."""
        async with self._lock:
            kept = self._folder.longest(namespace, tokens)
            if kept is None or kept.path in self._read:
                return
            self._read.add(kept.path)
            if await self._engine.num_cached(namespace, kept.tokens) == len(kept.tokens):
                return
            prefix = await anyio.to_thread.run_sync(self._folder.read, kept)
            if prefix is None:
                return
            try:
                num_new = await self._engine.put_in(prefix)
            except ValueError as error:
                self._folder.refuse(kept, str(error))
                return
            num_cached = await self._engine.num_cached(namespace, kept.tokens)
            if num_new and num_cached < len(kept.tokens):
                raise InternalError(
                    "IN204",
                    f"the KV of {len(kept.tokens):,} tokens was restored, and {num_cached:,} of "
                    "them are found",
                    help="this is a defect of FlowForge's KV cache: please report it",
                )
            self.num_restored += num_new

    async def keep(self, sequences: Iterable[tuple[Namespace, EngineSequence]]) -> None:
        """Write down what is computed of sequences, once where one begins with another."""
        longest: list[tuple[Namespace, EngineSequence]] = []
        for namespace, sequence in sorted(sequences, key=lambda one: -len(one[1].tokens)):
            tokens = sequence.tokens
            if not any(
                namespace == other and longer.tokens[: len(tokens)] == tokens
                for other, longer in longest
            ):
                longest.append((namespace, sequence))
        for _, sequence in longest:
            try:
                prefix = await sequence.take_out()
                if prefix is not None:
                    await anyio.to_thread.run_sync(self._folder.keep, prefix)
            except (OSError, EngineError) as error:
                # Only time is lost: it is computed again.
                _logger.warning("KV of %d tokens is not kept: %s", len(sequence.tokens), error)
