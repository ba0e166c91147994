"""The forward pass of a batch: on this process's weights and KV rows, by the kernels it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from flowforge.engine.attention.backends import AttentionBackend
    from flowforge.engine.graphs import DecodeGraphs
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.step_batch import StepBatch


class StepForward(Protocol):
    """Computes batches one after the other, each in this order; `ForwardPass` does it here."""

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        ...

    @property
    def num_rows_read(self) -> int:
        """KV rows that attention has read in one layer without a window."""
        ...

    def move(self, batch: StepBatch) -> None:
        """The batch's moves of rows, which come before everything else."""
        ...

    def hidden(self, batch: StepBatch) -> torch.Tensor:
        """One pass over all layers: [tokens, hidden_size]. K and V rows are written."""
        ...

    def logits(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """One call of the LM head: float32 [rows, vocab_size] behind some tokens of the batch."""
        ...


class ForwardPass:
    """A `StepForward` on one decoder and one KV store, both borrowed. Under inference mode.

    graphs: for the decode steps that they know. drawn: int64, the tokens that the last step drew,
    where batches have `feeds`.
    """

    def __init__(
        self,
        decoder: Decoder,
        store: KvStore,
        attention: AttentionBackend,
        graphs: DecodeGraphs | None = None,
        drawn: torch.Tensor | None = None,
    ) -> None:
        self._decoder = decoder
        self._drawn = drawn
        self._store = store
        self._device = store.rows.device
        self._attention = attention
        self._graphs = graphs
        self._num_rows_read = 0

    @property
    def page_size(self) -> int:
        """See `StepForward.page_size`."""
        return self._store.page_size

    @property
    def num_rows_read(self) -> int:
        """See `StepForward.num_rows_read`."""
        of_graphs = 0 if self._graphs is None else self._graphs.num_rows_read
        return self._num_rows_read + of_graphs

    def move(self, batch: StepBatch) -> None:
        """See `StepForward.move`."""
        self._store.move_rows(batch.moves)

    def hidden(self, batch: StepBatch) -> torch.Tensor:
        """See `StepForward.hidden`."""
        if self._graphs is not None:
            hidden = self._graphs.hidden(batch)
            if hidden is not None:
                return hidden
        # One copy to the device.
        feeds = [batch.feeds] if batch.feeds else []
        inputs = self._tensor([batch.token_ids, batch.positions, batch.slots, *feeds])
        token_ids, positions, slots = inputs[:3].unbind(0)
        if feeds:
            assert self._drawn is not None, "a batch is fed from what was drawn"
            token_ids = fed_ids(token_ids, inputs[3], self._drawn)
        attention = self._attention.step(slots, batch.spans, batch.segments)
        self._num_rows_read += attention.num_rows_read
        return self._decoder.forward(token_ids, positions, attention)

    def logits(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """See `StepForward.logits`."""
        first, stop = rows[0], rows[-1] + 1
        # Of a decode step all rows: nothing is copied to say so.
        is_run = rows == [*range(first, stop)]
        return self._decoder.logits(hidden[first:stop] if is_run else hidden[self._tensor(rows)])

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        on_host = torch.tensor(values, dtype=torch.int64)
        if self._device.type == "cpu":
            return on_host
        return on_host.pin_memory().to(self._device, non_blocking=True)


def fed_ids(token_ids: torch.Tensor, feeds: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Token ids with those in their places that the last step drew: int64 [num_tokens].

    feeds: integers [num_tokens], places among `drawn`, or -1. Copies nothing to or from the device,
    so a graph may capture it.
    """
    # Where no token could be drawn any id will do: nobody reads on.
    fed = drawn[feeds.clamp(min=0)].clamp(min=0)
    return torch.where(feeds < 0, token_ids.long(), fed)
