"""Decoders of real shapes with random weights, made on the device, and steps over their KV rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.reads import Segment, Span
from flowforge.engine.kernels.linears import MOST_ROWS, PackedLinear
from flowforge.engine.models.config import parse_model_config
from flowforge.engine.models.decoder import (
    Decoder,
    DecoderWeights,
    LayerWeights,
    MlpWeights,
    QKNorm,
)
from flowforge.engine.models.linears import ChosenLinear, KernelChoice, MatrixShape, TorchLinear
from flowforge.engine.models.packed import (
    PackedKind,
    PackedMatrix,
    UnpackedLinear,
    pack_float8,
    packed_bytes,
)
from flowforge.engine.models.quantized import GROUP_SIZE
from flowforge.engine.step_batch import StepBatch

if TYPE_CHECKING:
    from flowforge.engine.models.linears import Linear

PAGE_SIZE = 16


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes, as config.json has them."""

    name: str
    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    is_tied: bool = False


@dataclass(frozen=True)
class RandomModel:
    """num_bytes: that a decode step reads of the weights. num_weights: that a token meets."""

    decoder: Decoder
    num_bytes: int
    num_weights: int


class _Matrices:
    """Makes random matrices and counts them. packed: in what few bits; None for none."""

    def __init__(self, dtype: torch.dtype, device: torch.device, packed: PackedKind | None) -> None:
        self._dtype = dtype
        self._device = device
        self._packed: PackedKind | None = packed
        self.num_bytes = 0
        self.num_weights = 0

    def dense(self, rows: int, columns: int) -> torch.Tensor:
        """A matrix as torch has it; not counted."""
        return torch.empty((rows, columns), dtype=self._dtype, device=self._device).normal_(0, 0.02)

    def linear(self, rows: int, columns: int) -> Linear:
        """The product with a new matrix."""
        if self._packed is None:
            return self.of(self.dense(rows, columns))
        matrix = random_packed(self._packed, rows, columns, self._device)
        self.num_weights += rows * columns
        self.num_bytes += packed_bytes(matrix.kind, rows, columns)
        choice = KernelChoice(MatrixShape(matrix.kind, rows, columns), MOST_ROWS)
        return ChosenLinear(PackedLinear(matrix, None), UnpackedLinear(matrix, None), choice)

    def of(self, weight: torch.Tensor) -> Linear:
        """The product with a matrix that is there."""
        self.num_weights += weight.numel()
        self.num_bytes += weight.nbytes
        return TorchLinear(weight, None)


def random_packed(kind: PackedKind, rows: int, columns: int, device: torch.device) -> PackedMatrix:
    """A matrix of random numbers in few bits, none of them large."""
    if kind == "float8":
        return pack_float8(torch.randn((rows, columns), device=device) * 0.02)
    width = columns // 2 if kind == "int4" else columns
    values = torch.randint(0, 256, (rows, width), dtype=torch.uint8, device=device)
    groups = (rows, columns // GROUP_SIZE)
    scales = torch.full(groups, 0.002 if kind == "int4" else 0.0002, device=device).half()
    mins = scales * -8 if kind == "int4" else torch.zeros_like(scales)
    return PackedMatrix(kind, values if kind == "int4" else values.view(torch.int8), scales, mins)


def random_model(
    shape: Shape, device: torch.device, dtype: torch.dtype, packed: PackedKind | None = None
) -> RandomModel:
    """A decoder; its products but an embedding's in few bits, if asked for."""
    content = {
        "architectures": [shape.architecture],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.is_tied,
    }
    config = parse_model_config(content, Path("config.json"), ())
    matrices = _Matrices(dtype, device, packed)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=dtype, device=device)

    def layer() -> LayerWeights:
        q = shape.heads * shape.head_dim
        kv = shape.kv_heads * shape.head_dim
        has_norm = config.family.has_qk_norm
        return LayerWeights(
            attention_norm=ones(shape.hidden),
            qkv=matrices.linear(q + 2 * kv, shape.hidden),
            qk_norm=QKNorm(ones(shape.head_dim), ones(shape.head_dim)) if has_norm else None,
            output=matrices.linear(shape.hidden, q),
            attention_post_norm=None,
            mlp_norm=ones(shape.hidden),
            mlp=MlpWeights(
                matrices.linear(2 * shape.intermediate, shape.hidden),
                matrices.linear(shape.hidden, shape.intermediate),
            ),
            mlp_post_norm=None,
        )

    layers = tuple(layer() for _ in range(shape.layers))
    in_layers = matrices.num_weights
    embedding = matrices.dense(shape.vocab, shape.hidden)
    is_shared = shape.is_tied and packed is None
    head = matrices.of(embedding) if is_shared else matrices.linear(shape.vocab, shape.hidden)
    weights = DecoderWeights(embedding, layers, ones(shape.hidden), head)
    return RandomModel(Decoder(config, weights), matrices.num_bytes, in_layers)


def decode_batch(contexts: list[int]) -> StepBatch:
    """One token behind each context; contexts lie behind each other."""
    room = -(-(max(contexts) + 1) // PAGE_SIZE) * PAGE_SIZE
    spans = tuple(Span(row, 1, ((row * room, size),)) for row, size in enumerate(contexts))
    slots = [row * room + size - 1 for row, size in enumerate(contexts)]
    return _batch([size - 1 for size in contexts], slots, spans, ())


def branch_batch(branches: int, prefix: int, suffix: int, room: int) -> StepBatch:
    """One token of each branch: a prefix of all, then a suffix of its own."""
    starts = [prefix + branch * room for branch in range(branches)]
    spans = tuple(Span(row, 1, ((0, prefix), (start, suffix))) for row, start in enumerate(starts))
    slots = [start + suffix - 1 for start in starts]
    shared = (Segment(0, prefix, tuple(range(branches))),)
    return _batch([prefix + suffix - 1] * branches, slots, spans, shared)


def prefill_batch(prompt: int) -> StepBatch:
    """A whole prompt at once; the logits behind it."""
    span = Span(0, prompt, ((0, prompt),))
    whole = _batch([*range(prompt)], [*range(prompt)], (span,), ())
    return replace(whole, logit_rows=([prompt - 1],))


def _batch(
    positions: list[int],
    slots: list[int],
    spans: tuple[Span, ...],
    segments: tuple[Segment, ...],
) -> StepBatch:
    token_ids = [7 + position % 89 for position in positions]
    return StepBatch((), token_ids, positions, slots, spans, segments, ([*range(len(positions))],))
