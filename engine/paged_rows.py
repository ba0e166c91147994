"""The KV rows that a process computes on, and who attends to them: the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.attention.backends import choose_backend, find_kernel_backend
from flowforge.engine.attention.compiled import find_attention_library
from flowforge.engine.kv.store import KvStore

if TYPE_CHECKING:
    import torch

    from flowforge.engine.attention.backends import AttentionBackend
    from flowforge.engine.attention.kernel_attention import KernelBackend
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import KernelUse


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """What rows there are to be, and how they are attended to.

    num_pages, page_size, dtype, is_float8, num_host_slots, verifies: see `KvStore`. kernels: never
    leaves attention to torch on a CPU.
    """

    num_pages: int
    page_size: int
    dtype: torch.dtype
    is_float8: bool = False
    num_host_slots: int = 0
    verifies: bool = False
    shared_attention: SharedAttention = "auto"
    kernels: KernelUse = "measured"


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Rows, and the attention over them. kernels: of the GPU, if it is they that attend."""

    store: KvStore
    attention: AttentionBackend
    kernels: KernelBackend | None


def make_rows(plan: RowsPlan, model: ModelConfig, device: torch.device) -> PagedRows:
    """The rows of a model, or of a rank's part of one."""
    store = KvStore(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        num_pages=plan.num_pages,
        page_size=plan.page_size,
        dtype=plan.dtype,
        device=device,
        is_float8=plan.is_float8,
        num_host_slots=plan.num_host_slots,
        verifies=plan.verifies,
    )
    shared = plan.shared_attention
    kernels = find_kernel_backend(store, model.num_heads, shared)
    if kernels is not None:
        return PagedRows(store, kernels, kernels)
    library = None if plan.kernels == "never" else find_attention_library()
    return PagedRows(store, choose_backend(store, shared, library), None)
