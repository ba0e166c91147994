"""An engine core without a thread on a real model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.attention.backends import choose_backend
from flowforge.engine.core import EngineCore
from flowforge.engine.device_step import DrawnTokens
from flowforge.engine.forward import ForwardPass
from flowforge.engine.kv.audit import KvAudit
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.host_tier import HostTier
from flowforge.engine.kv.store import KvStore
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.prefix_rows import PrefixRows
from flowforge.engine.runner import ModelRunner
from flowforge.engine.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary
    from flowforge.engine.row_sampler import RowSampler


def model_core(
    decoder: Decoder,
    *,
    num_pages: int = 64,
    page_size: int = 4,
    max_step_tokens: int = 64,
    max_running: int = 8,
    shared_attention: SharedAttention = "on",
    kernel: AttentionLibrary | None = None,
    num_host_slots: int = 0,
    is_float8: bool = False,
    sampler: RowSampler | None = None,
    eos_token_ids: frozenset[int] = frozenset(),
) -> tuple[EngineCore, KvCache]:
    """In debug mode: free pages hold NaN, and every read is checked.

    sampler: draws tokens where the logits are, and steps overlap, as on a GPU.
    """
    config = decoder.config
    store = KvStore(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_pages=num_pages,
        page_size=page_size,
        dtype=decoder.dtype,
        device=decoder.device,
        is_float8=is_float8,
        num_host_slots=num_host_slots,
        verifies=True,
    )
    audit = KvAudit(num_pages, page_size, store.poison)
    host = HostTier(num_host_slots) if num_host_slots else None
    kv = KvCache(num_pages, page_size, audit.note_freed, host)
    attention = choose_backend(store, shared_attention, kernel)
    drawn = None
    if sampler is not None:
        most = max_step_tokens + max_running
        drawn = DrawnTokens(sampler, most, decoder.device)
    forward = ForwardPass(decoder, store, attention, drawn=None if drawn is None else drawn.ids)
    core = EngineCore(
        ModelRunner(forward, audit, kv.is_free, drawn),
        kv,
        SchedulerLimits(max_step_tokens, max_running),
        ModelLimits(config.vocab_size, config.max_context_len, eos_token_ids),
        clock=lambda: 0.0,
        prefix_rows=PrefixRows(kv, store, audit),
        overlaps=drawn is not None,
    )
    return core, kv
