"""KV rows of a prefix as a value of their own: taken out of the cache, and put in again.

What is put in lies in the tree as if it had been computed there and its sequence had ended: cached,
evictable, and found by whoever has the same tokens. Nothing else in the cache changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flowforge.engine.kv.cache import ShortBy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.kv.audit import KvAudit
    from flowforge.engine.kv.cache import KvCache, RowCopy
    from flowforge.engine.kv.path import KvPath
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.kv.store import KvStore


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KvPrefix:
    """The KV of some tokens from the beginning of a sequence.

    rows: [num_layers, 2, num_kv_heads, len(tokens), head_dim], on the CPU; the holder's own.
    """

    namespace: Namespace
    tokens: tuple[int, ...]
    rows: torch.Tensor

    def __repr__(self) -> str:
        return f"KvPrefix(tokens={len(self.tokens)})"


class PrefixRows:
    """Between the books and the tensors of one engine, both borrowed. On the engine's thread."""

    def __init__(self, kv: KvCache, store: KvStore, audit: KvAudit | None = None) -> None:
        self._kv = kv
        self._store = store
        self._audit = audit

    @torch.inference_mode()
    def take_out(self, namespace: Namespace, tokens: list[int], path: KvPath) -> KvPrefix | None:
        """A copy of all rows that a path has computed; None where there are none."""
        num_tokens = path.num_tokens
        if num_tokens == 0:
            return None
        rows = self._store.rows[..., self._slots(path, 0, num_tokens), :].cpu()
        return KvPrefix(namespace, tuple(tokens[:num_tokens]), rows)

    @torch.inference_mode()
    def put_in(self, prefix: KvPrefix) -> int:
        """Have a prefix in the cache; returns how many of its rows were not there.

        0 also where pages are short: it is computed then. Raises ValueError for rows that are not
        of this engine's shape and type.
        """
        self._require_fitting(prefix.rows, len(prefix.tokens))
        tokens = list(prefix.tokens)
        path = self._kv.open(prefix.namespace)
        try:
            self._advance(path, tokens)
            start = path.num_tokens
            if start == len(tokens) or isinstance(self._kv.reserve(path, len(tokens)), ShortBy):
                return 0
            self._move([])
            slots = self._slots(path, 0, len(tokens))
            rows = prefix.rows[..., start:, :]
            self._store.rows[..., slots[start:], :] = rows.to(self._store.rows.device)
            if self._audit is not None:
                self._audit.read_and_written(prefix.namespace, tokens, slots.cpu().numpy(), start)
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
        self._kv.moved()
        if self._audit is not None:
            self._audit.moved(moves, self._kv.is_free)

    def _slots(self, path: KvPath, start: int, stop: int) -> torch.Tensor:
        slots = [self._kv.slot(path, position) for position in range(start, stop)]
        return torch.tensor(slots, dtype=torch.int64, device=self._store.rows.device)

    def _require_fitting(self, rows: torch.Tensor, num_tokens: int) -> None:
        own = self._store.rows
        shape = (*own.shape[:3], num_tokens, own.shape[4])
        if tuple(rows.shape) != shape or rows.dtype != own.dtype:
            raise ValueError(
                f"expected rows {shape} of {own.dtype}, got {tuple(rows.shape)} of {rows.dtype}"
            )
