"""The forward pass of a batch: on this process's weights and KV rows, by the kernels it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.compiled import CompiledAttention, can_compute
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import split_policy

if TYPE_CHECKING:
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary
    from flowforge.engine.step_batch import StepBatch


class ForwardPass:
    """Owns a step's tensors; the decoder and the KV store are borrowed. Under inference mode.

    shared_attention: as in `EngineConfig`. kernel: attention by it, where it can compute the rows.
    """

    def __init__(
        self,
        decoder: Decoder,
        store: KvStore,
        shared_attention: SharedAttention = "auto",
        kernel: AttentionLibrary | None = None,
    ) -> None:
        self.store = store
        self._decoder = decoder
        self._device = store.rows.device
        self._shared_attention: SharedAttention = shared_attention
        self._policy = split_policy(shared_attention, store.row_bytes)
        self._kernel = kernel if can_compute(store.rows) else None
        self._num_rows_read = 0

    @property
    def num_rows_read(self) -> int:
        """KV rows that attention has read in one layer without a window."""
        return self._num_rows_read

    def copy(self, batch: StepBatch) -> None:
        """The batch's copies of rows, which come before everything else."""
        self.store.copy_rows(batch.copies)

    def hidden(self, batch: StepBatch) -> torch.Tensor:
        """One pass over all layers: [tokens, hidden_size]. K and V rows are written."""
        attention = self._attention(batch)
        self._num_rows_read += attention.num_rows_read
        return self._decoder.forward(
            self._tensor(batch.token_ids), self._tensor(batch.positions), attention
        )

    def logits(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """One call of the LM head: float32 [rows, vocab_size] behind some tokens of the batch."""
        return self._decoder.logits(hidden[self._tensor(rows)])

    def _attention(self, batch: StepBatch) -> PagedAttention | CompiledAttention:
        rows, slots = self.store.rows, self._tensor(batch.slots)
        if self._kernel is None:
            return PagedAttention(rows, slots, batch.spans, batch.segments, self._policy)
        # The kernel merges nothing, so sharing always pays.
        shared = () if self._shared_attention == "off" else batch.segments
        return CompiledAttention(self._kernel, rows, slots, batch.spans, shared)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
