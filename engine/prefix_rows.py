"""KV rows of a prefix as a value of their own: taken out of the cache, and put in again.

What is put in lies in the tree as if it had been computed there and its sequence had ended: cached,
evictable, and found by whoever has the same tokens. Nothing else in the cache changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from flowforge.engine.kv.cache import ShortBy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.engine.kv.audit import KvAudit
    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.kv.moves import RowCopy, RowMove
    from flowforge.engine.kv.path import KvPath
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.kv.store import RowKind


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KvPrefix:
    """The KV of some tokens from the beginning of a sequence.

    rows: [num_layers, 2, num_kv_heads, len(tokens), head_dim], on the CPU; the holder's own.
    scales: float32, without the last dimension, of rows in float8.
    """

    namespace: Namespace
    tokens: tuple[int, ...]
    rows: torch.Tensor
    scales: torch.Tensor | None = None

    def __repr__(self) -> str:
        return f"KvPrefix(tokens={len(self.tokens)})"


class MovableRows(Protocol):
    """The KV rows of an engine, wherever they are; `KvStore` has them in this process."""

    @property
    def kind(self) -> RowKind:
        """See `KvStore`; of all ranks together."""
        ...

    def move_rows(self, moves: Iterable[RowMove]) -> None:
        """See `KvStore.move_rows`."""
        ...

    def take_out(self, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `KvStore.take_out`."""
        ...

    def put_in(self, slots: Sequence[int], rows: torch.Tensor, scales: torch.Tensor | None) -> None:
        """See `KvStore.put_in`."""
        ...


class PrefixRows:
    """Between the books and the rows of one engine, both borrowed. On the engine's thread."""

    def __init__(self, kv: KvCache, store: MovableRows, audit: KvAudit | None = None) -> None:
        self._kv = kv
        self._store = store
        self._audit = audit

    @torch.inference_mode()
    def take_out(self, namespace: Namespace, tokens: list[int], path: KvPath) -> KvPrefix | None:
        """A copy of all rows that a path has computed; None where there are none."""
        num_tokens = path.num_tokens
        if num_tokens == 0:
            return None
        rows, scales = self._store.take_out(self._slots(path, num_tokens))
        return KvPrefix(namespace, tuple(tokens[:num_tokens]), rows, scales)

    @torch.inference_mode()
    def put_in(self, prefix: KvPrefix) -> int:
        """Have a prefix in the cache; returns how many of its rows were not there.

        0 also where pages are short: it is computed then. Raises ValueError for rows that are not
        of this engine's shape and type.
        """
        self._require_fitting(prefix)
        tokens = list(prefix.tokens)
        path = self._kv.open(prefix.namespace)
        try:
            self._advance(path, tokens)
            start = path.num_tokens
            if start == len(tokens) or isinstance(self._kv.reserve(path, len(tokens)), ShortBy):
                return 0
            self._move([])
            slots = self._slots(path, len(tokens))
            scales = None if prefix.scales is None else prefix.scales[..., start:]
            self._store.put_in(slots[start:], prefix.rows[..., start:, :], scales)
            if self._audit is not None:
                self._audit.read_and_written(prefix.namespace, tokens, np.array(slots), start)
            self._kv.commit(path, tokens[start:])
        finally:
            self._kv.release(path)
        return len(tokens) - start

    def _advance(self, path: KvPath, tokens: list[int]) -> None:
        copy = self._kv.advance(path, tokens, len(tokens))
        self._move([] if copy is None else [copy])

    def _move(self, copies: Sequence[RowCopy]) -> None:
        """Carry out what the last call to the cache asked for; copies came last."""
        moves = [*self._kv.take_moves(), *copies]
        self._store.move_rows(moves)
        self._kv.take_restored()
        if self._audit is not None:
            self._audit.moved(moves, self._kv.is_free)

    def _slots(self, path: KvPath, stop: int) -> list[int]:
        return [self._kv.slot(path, position) for position in range(stop)]

    def _require_fitting(self, prefix: KvPrefix) -> None:
        kind = self._store.kind
        shape = (kind.num_layers, 2, kind.num_kv_heads, len(prefix.tokens), kind.head_dim)
        expected = _told(shape, kind.kept_dtype, shape[:-1] if kind.is_float8 else None)
        rows, scales = prefix.rows, prefix.scales
        found = _told(
            tuple(rows.shape), rows.dtype, None if scales is None else tuple(scales.shape)
        )
        if expected != found:
            raise ValueError(f"expected {expected}, got {found}")


def _told(shape: tuple[int, ...], dtype: torch.dtype, scales: tuple[int, ...] | None) -> str:
    rows = f"rows {shape} of {str(dtype).removeprefix('torch.')}"
    return rows if scales is None else f"{rows} with scales {scales}"
