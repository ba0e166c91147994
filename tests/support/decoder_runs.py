"""Running a decoder over one text: dense, and through pages in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.compiled import CompiledAttention
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import Span
from flowforge.engine.attention.reference import DenseAttention

if TYPE_CHECKING:
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary

_NUM_SLOTS = 256
# Where the pages of the text lie: two runs, the second before the first, so that slots and
# positions differ and a window can begin in either.
_FIRST_RUN, _FIRST_LEN, _SECOND_RUN = 160, 16, 32


def empty_rows(decoder: Decoder) -> torch.Tensor:
    """KV rows that nothing may read before they are written: they hold NaN."""
    config = decoder.config
    shape = (config.num_layers, 2, config.num_kv_heads, _NUM_SLOTS, config.head_dim)
    return torch.full(shape, torch.nan, dtype=decoder.dtype)


def ranges_of(num_tokens: int) -> tuple[tuple[int, int], ...]:
    """The slot ranges of the first tokens of the text."""
    assert num_tokens <= _FIRST_LEN + _FIRST_RUN - _SECOND_RUN, "the runs would overlap"
    first = ((_FIRST_RUN, min(num_tokens, _FIRST_LEN)),)
    return first if num_tokens <= _FIRST_LEN else (*first, (_SECOND_RUN, num_tokens - _FIRST_LEN))


def slot_of(position: int) -> int:
    """The slot of one token of the text."""
    if position < _FIRST_LEN:
        return _FIRST_RUN + position
    return _SECOND_RUN + position - _FIRST_LEN


@torch.inference_mode()
def dense_logits(decoder: Decoder, *sequences: torch.Tensor) -> torch.Tensor:
    """Logits of fresh sequences in one step."""
    lens = [len(sequence) for sequence in sequences]
    positions = torch.cat([torch.arange(length) for length in lens])
    hidden = decoder.forward(torch.cat(sequences), positions, DenseAttention(lens))
    return decoder.logits(hidden)


@torch.inference_mode()
def compiled_hidden(
    decoder: Decoder, library: AttentionLibrary, length: int, chunk_len: int
) -> torch.Tensor:
    """Hidden states of one text, of tokens 3 and on, in chunks on two runs of pages."""
    rows, parts = empty_rows(decoder), list[torch.Tensor]()
    for start in range(0, length, chunk_len):
        stop = min(length, start + chunk_len)
        span = Span(0, stop - start, ranges_of(stop))
        slots = torch.tensor([slot_of(position) for position in range(start, stop)])
        attention = CompiledAttention(library, rows, slots, (span,))
        positions = torch.arange(start, stop)
        parts.append(decoder.forward(positions + 3, positions, attention))
    return torch.cat(parts)


@torch.inference_mode()
def paged_logits(
    decoder: Decoder,
    token_ids: torch.Tensor,
    chunk_len: int,
    rows: torch.Tensor | None = None,
    start: int = 0,
) -> torch.Tensor:
    """Logits of one text in chunks through pages; before start the rows are there already."""
    rows = empty_rows(decoder) if rows is None else rows
    parts: list[torch.Tensor] = []
    for begin in range(start, len(token_ids), chunk_len):
        end = min(len(token_ids), begin + chunk_len)
        span = Span(0, end - begin, ranges_of(end))
        slots = torch.tensor([slot_of(position) for position in range(begin, end)])
        attention = PagedAttention(rows, slots, (span,))
        positions = torch.arange(begin, end)
        hidden = decoder.forward(token_ids[begin:end], positions, attention)
        parts.append(decoder.logits(hidden))
    return torch.cat(parts)


def greedy_ids(decoder: Decoder, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """Greedy ids after a prompt, one step each, through pages."""
    rows = empty_rows(decoder)
    token_ids = prompt
    logits = paged_logits(decoder, token_ids, 64, rows)[-1]
    for _ in range(num_tokens - 1):
        token_ids = torch.cat((token_ids, logits.argmax().view(1)))
        logits = paged_logits(decoder, token_ids, 1, rows, start=len(token_ids) - 1)[-1]
    return [*token_ids[len(prompt) :].tolist(), int(logits.argmax())]
