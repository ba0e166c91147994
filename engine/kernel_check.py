"""The GPU kernels held to torch on one small case each: what `flowforge doctor` tells.

What every kernel computes over all shapes and types is the tests' to check.
"""

from __future__ import annotations

import torch

from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.attention.kernel_attention import KernelAttention, kernel_policy, tile_shape
from flowforge.engine.attention.reads import Segment, Span
from flowforge.engine.attention.reference import dense_attention
from flowforge.engine.kernels.norms import rms_norm

TOLERANCE = 1e-2
"""bfloat16 keeps 8 bits; sums over a hundred rows lose little more."""

_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _PAGE_SIZE = 8, 2, 64, 16
_SHARED, _OWN, _NUM_READERS = 48, 16, 3


@torch.inference_mode()
def worst_difference(device: str | torch.device) -> float:
    """The largest ‖kernel - torch‖ / ‖torch‖ in bfloat16. Raises whatever a kernel fails with."""
    place = torch.device(device)
    generator = torch.Generator().manual_seed(5)
    return max(_of_norm(place, generator), _of_attention(place, generator))


def _of_norm(device: torch.device, generator: torch.Generator) -> float:
    x = torch.randn((5, 256), generator=generator).to(device, torch.bfloat16)
    weight = torch.randn(256, generator=generator).to(device, torch.bfloat16)
    expected = torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-5)
    return _difference(rms_norm(x, weight, 1e-5), expected)


def _of_attention(device: torch.device, generator: torch.Generator) -> float:
    """Single queries that share a prefix, beside a prompt: every attention kernel has work."""
    lens = [*(_SHARED + _OWN for _ in range(_NUM_READERS)), 40]
    spans: list[Span] = []
    slots: list[int] = []
    start = _SHARED
    for length in lens[:-1]:
        spans.append(Span(len(slots), 1, ((0, _SHARED), (start, length - _SHARED))))
        slots.append(start + length - _SHARED - 1)
        start += _OWN
    spans.append(Span(len(slots), lens[-1], ((start, lens[-1]),)))
    slots += range(start, start + lens[-1])
    num_slots = -(-(start + lens[-1]) // _PAGE_SIZE) * _PAGE_SIZE

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    rows = random(1, 2, _NUM_KV_HEADS, num_slots, _HEAD_DIM)
    q = random(len(slots), _NUM_HEADS, _HEAD_DIM)
    k, v = random(2, len(slots), _NUM_KV_HEADS, _HEAD_DIM).unbind(0)
    layer = LayerAttention(_HEAD_DIM**-0.5)
    step = KernelAttention(
        rows,
        torch.tensor(slots, device=device),
        tuple(spans),
        (Segment(0, _SHARED, tuple(range(_NUM_READERS))),),
        kernel_policy("on", 2 * _NUM_KV_HEADS * _HEAD_DIM * 2),
        shape=tile_shape(_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _PAGE_SIZE, torch.bfloat16),
    )
    found = step.attend(0, q, k, v, layer)
    worst = 0.0
    for span in spans:
        queries = slice(span.query_start, span.query_start + span.query_len)
        taken = torch.cat([torch.arange(first, first + size) for first, size in span.ranges])
        keys, values = rows[0][:, :, taken.to(device)].transpose(1, 2)  # [rows, kv heads, d] each
        expected = dense_attention(q[queries], keys, values, layer)
        worst = max(worst, _difference(found[queries], expected))
    return worst


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    distance = torch.linalg.vector_norm((found - expected).float())
    return float(distance / torch.linalg.vector_norm(expected.float()))
