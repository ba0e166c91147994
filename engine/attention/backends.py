"""Who computes attention in an engine: settled once, asked for an `AttentionStep` at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flowforge.engine.attention.compiled import CompiledAttention, can_compute
from flowforge.engine.attention.interface import AttentionStep
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import split_policy
from flowforge.engine.kernels.presence import has_float8_kernels, has_kernels

if TYPE_CHECKING:
    import torch

    from flowforge.engine.attention.kernel_attention import KernelBackend
    from flowforge.engine.attention.reads import Segment, Span, SplitPolicy
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.native.attention_library import AttentionLibrary


class PlannedAttention(AttentionStep, Protocol):
    """An `AttentionStep` that knows what it reads."""

    @property
    def num_rows_read(self) -> int:
        """KV rows that are read in one layer without a window."""
        ...


class AttentionBackend(Protocol):
    """Makes each step's attention."""

    def step(
        self, slots: torch.Tensor, spans: tuple[Span, ...], segments: tuple[Segment, ...]
    ) -> PlannedAttention:
        """Attention of one step, over the rows that the backend was made for.

        slots: int64 [num_tokens], where each token's K and V go. spans: of adjacent queries, in
        order. segments: rows that several spans have in common.
        """
        ...


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """By torch's operators, on any device. scales: of rows in float8, see `PagedAttention`."""

    rows: torch.Tensor
    policy: SplitPolicy
    scales: torch.Tensor | None = None

    def step(
        self, slots: torch.Tensor, spans: tuple[Span, ...], segments: tuple[Segment, ...]
    ) -> PlannedAttention:
        """See `AttentionBackend.step`."""
        return PagedAttention(self.rows, slots, spans, segments, self.policy, self.scales)


@dataclass(frozen=True, slots=True)
class CompiledBackend:
    """By the compiled kernel of the CPU, which merges nothing: sharing always pays."""

    rows: torch.Tensor
    library: AttentionLibrary
    shares: bool

    def step(
        self, slots: torch.Tensor, spans: tuple[Span, ...], segments: tuple[Segment, ...]
    ) -> PlannedAttention:
        """See `AttentionBackend.step`."""
        shared = segments if self.shares else ()
        return CompiledAttention(self.library, self.rows, slots, spans, shared)


def choose_backend(
    store: KvStore,
    shared_attention: SharedAttention = "auto",
    kernel: AttentionLibrary | None = None,
) -> AttentionBackend:
    """The backend for a store's rows, without the GPU kernels. kernel: the compiled one, if any."""
    if kernel is not None and can_compute(store.rows):
        return CompiledBackend(store.rows, kernel, shares=shared_attention != "off")
    policy = split_policy(shared_attention, store.row_bytes)
    return TorchBackend(store.rows, policy, store.scales)


def find_kernel_backend(
    store: KvStore, num_heads: int, shared_attention: SharedAttention = "auto"
) -> KernelBackend | None:
    """The GPU kernels for a store's rows; None where they cannot be had, which is logged."""
    has_any = has_float8_kernels if store.kind.is_float8 else has_kernels
    if not has_any(store.rows.device):
        return None
    from flowforge.engine.attention.kernel_attention import kernel_backend

    return kernel_backend(store, num_heads, shared_attention)
