"""All layers of a step in one call of the engine's kernels, in float32 on a CPU.

What a layer does besides its products is little work, but forty operators of torch, each with its
Python, its allocation and its threads to wake.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.compiled import CompiledAttention, find_attention_library
from flowforge.engine.attention.reads import Span
from flowforge.engine.models.config import parse_model_config
from flowforge.engine.models.decoder import Decoder, DecoderWeights, LayerWeights, MlpWeights
from flowforge.engine.models.linears import (
    ChosenLinear,
    LinearMaker,
    NativeLinear,
    find_kernels,
    most_native_rows,
)
from flowforge.engine.native.attention_library import HEAD_DIM_MULTIPLE
from flowforge.engine.native.compilation import load_library
from flowforge.engine.native.layers_library import (
    ACTIVATIONS,
    NORMS,
    ROUNDED,
    CompiledLayer,
    LayersCall,
    LayersLibrary,
    Turns,
)
from flowforge.engine.native.library import RoundedRows

if TYPE_CHECKING:
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import Linear
    from flowforge.engine.models.operators import Angles
    from flowforge.engine.models.rope_config import RopeConfig
    from flowforge.engine.native.library import MatrixCall

_logger = logging.getLogger(__name__)

_CHECK_SIZE = 32


def compile_layers(config: ModelConfig, weights: DecoderWeights) -> CompiledLayers | None:
    """The layers of a decoder, if the kernels can compute all that they have."""
    are_known = all(_native(linear) for layer in weights.layers for linear in _linears(layer))
    has_mlps = all(isinstance(layer.mlp, MlpWeights) for layer in weights.layers)
    if not (are_known and has_mlps) or config.head_dim % HEAD_DIM_MULTIPLE:
        return None
    library = find_layers_library()
    return None if library is None else CompiledLayers(library, config, weights)


@cache
def find_layers_library() -> LayersLibrary | None:
    """The kernels, compiled now where they are not kept yet; None where that cannot be.

    Why not is logged once.
    """
    library = load_library(LayersLibrary)
    if library is not None and not _computes_right(library):
        _logger.warning("the compiled layers compute wrong results: not used")
        return None
    return library


class CompiledLayers:
    """Holds no weights, only where they are, and buffers; one step at a time.

    most_rows: tokens of a step up to which every product was chosen to be the kernels'.
    """

    def __init__(
        self, library: LayersLibrary, config: ModelConfig, weights: DecoderWeights
    ) -> None:
        """weights: of which `can_compile` is true; they must outlive this."""
        self._library = library
        self._config = config
        self._weights = weights
        self._ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope))
        layers = [
            self._compiled(layer, config.layers[idx].rope, config.layers[idx].window)
            for idx, layer in enumerate(weights.layers)
        ]
        self._layers = (CompiledLayer * len(layers))(*layers)
        every_linear = [linear for layer in weights.layers for linear in _linears(layer)]
        self.most_rows = min(most_native_rows(linear) for linear in every_linear)
        self._rounds = any(_matrix(linear).rounds for linear in every_linear)
        self._buffers = _Buffers(config, 0, rounds=self._rounds)

    def forward(
        self, hidden: torch.Tensor, angles: dict[RopeConfig, Angles], attention: CompiledAttention
    ) -> torch.Tensor:
        """The hidden states behind the final norm: [T, hidden_size].

        hidden: float32 [T, hidden_size], contiguous, overwritten. angles: cosines and signed sines
        for each rope, [T, 1, num_rows]. attention: of this step.
        """
        config = self._config
        num_tokens = hidden.shape[0]
        if num_tokens > self._buffers.num_tokens:
            self._buffers = _Buffers(config, num_tokens, rounds=self._rounds)
        buffers = self._buffers
        out = torch.empty_like(hidden)
        turns = (Turns * len(self._ropes))(
            *(
                Turns(*(part.data_ptr() for part in angles[rope]), rope.num_rows)
                for rope in self._ropes
            )
        )
        counters = torch.zeros((9 * config.num_layers + 1, 3), dtype=torch.int32)
        call = attention.call
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        call.num_heads = config.num_heads
        call.scale, call.softcap = config.score_scale, config.score_softcap or 0.0
        call.q_stride = call.k_stride = call.v_stride = width
        call.q = buffers.qkv.data_ptr()
        call.k = call.q + 4 * config.num_heads * config.head_dim
        call.v = call.k + 4 * config.num_kv_heads * config.head_dim
        call.out, call.sums = buffers.attended.data_ptr(), buffers.sums.data_ptr()
        self._library.run(
            LayersCall(
                layers=ctypes.addressof(self._layers),
                ropes=ctypes.addressof(turns),
                attention=ctypes.addressof(call),
                rows=attention.rows.data_ptr(),
                hidden=hidden.data_ptr(),
                out=out.data_ptr(),
                final_norm=self._weights.final_norm.data_ptr(),
                normed=buffers.normed.data_ptr(),
                qkv=buffers.qkv.data_ptr(),
                projected=buffers.projected.data_ptr(),
                gate_up=buffers.gate_up.data_ptr(),
                **{name: rows.call for name, rows in buffers.rounded.items()},
                counters=counters.data_ptr(),
                num_layers=config.num_layers,
                hidden_size=config.hidden_size,
                mlp_size=config.intermediate_size,
                activation=ACTIVATIONS.index(config.activation),
                epsilon=config.rms_norm_eps,
            )
        )
        return out

    def _compiled(
        self, layer: LayerWeights, rope: RopeConfig | None, window: int | None
    ) -> CompiledLayer:
        qkv, output, gate_up, down = (_matrix(linear) for linear in _linears(layer))
        qk_norm = layer.qk_norm
        return CompiledLayer(
            qkv=qkv,
            output=output,
            gate_up=gate_up,
            down=down,
            **{name: _address(getattr(layer, name)) for name in NORMS},
            q_norm=None if qk_norm is None else _address(qk_norm.q),
            k_norm=None if qk_norm is None else _address(qk_norm.k),
            rope=-1 if rope is None else self._ropes.index(rope),
            window=window or 0,
        )


class _Buffers:
    """What the threads of a call write between two parts of a layer, for so many tokens at most."""

    def __init__(self, config: ModelConfig, num_tokens: int, *, rounds: bool) -> None:
        """rounds: whether a product multiplies in integers."""

        def room(size: int) -> torch.Tensor:
            return torch.empty(num_tokens * size, dtype=torch.float32)

        num_heads = config.num_heads
        self.num_tokens = num_tokens
        self.normed, self.projected = room(config.hidden_size), room(config.hidden_size)
        self.qkv = room((num_heads + 2 * config.num_kv_heads) * config.head_dim)
        self.attended, self.sums = room(num_heads * config.head_dim), room(2 * num_heads)
        self.gate_up = room(2 * config.intermediate_size)
        widths = (config.hidden_size, num_heads * config.head_dim, config.intermediate_size)
        self.rounded = {
            name: RoundedRows(num_tokens, width)
            for name, width in zip(ROUNDED, widths, strict=True)
            if rounds
        }


def _linears(layer: LayerWeights) -> tuple[Linear, ...]:
    """In the order of `CompiledLayer`."""
    mlp = (layer.mlp.gate_up, layer.mlp.down) if isinstance(layer.mlp, MlpWeights) else ()
    return (layer.qkv, layer.output, *mlp)


def _native(linear: Linear) -> NativeLinear | None:
    few = linear.few if isinstance(linear, ChosenLinear) else linear
    return few if isinstance(few, NativeLinear) else None


def _matrix(linear: Linear) -> MatrixCall:
    native = _native(linear)
    assert native is not None, "only what the kernels know is compiled"
    return native.matrix.call


def _address(tensor: torch.Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.dtype == torch.float32 and tensor.is_contiguous(), (
        "norms are as kernels read them"
    )
    return tensor.data_ptr()


@torch.inference_mode()
def _computes_right(library: LayersLibrary) -> bool:
    """On one small layer; everything else is the tests' to check."""
    attention_library = find_attention_library()
    if attention_library is None:
        return False
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": _CHECK_SIZE,
        "intermediate_size": 2 * _CHECK_SIZE,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": _CHECK_SIZE,
        "max_position_embeddings": _CHECK_SIZE,
    }
    config = parse_model_config(shape, Path("config.json"), ())
    weights = _random_weights()
    single = Decoder(config, weights)
    compiled = Decoder(config, weights, (), CompiledLayers(library, config, weights))
    positions = torch.arange(7)
    span = Span(0, 7, ((0, 7),))

    def hidden(decoder: Decoder) -> torch.Tensor:
        rows = torch.zeros((1, 2, 2, 7, config.head_dim))
        attention = CompiledAttention(attention_library, rows, positions, (span,))
        return decoder.forward(positions, positions, attention)

    return torch.allclose(hidden(compiled), hidden(single), rtol=1e-3, atol=1e-3)


def _random_weights() -> DecoderWeights:
    """Of a layer as `_computes_right` describes it."""
    generator, size = torch.Generator().manual_seed(3), _CHECK_SIZE
    maker = LinearMaker("always", find_kernels(torch.device("cpu")))

    def matrix(num_rows: int, num_columns: int = size) -> torch.Tensor:
        return torch.randn((num_rows, num_columns), generator=generator).div(num_columns**0.5)

    def norm() -> torch.Tensor:
        return torch.rand(size, generator=generator)

    layer = LayerWeights(
        attention_norm=norm(),
        qkv=maker.make(matrix(2 * size), None),
        qk_norm=None,
        output=maker.make(matrix(size), None),
        attention_post_norm=None,
        mlp_norm=norm(),
        mlp=MlpWeights(
            gate_up=maker.make(matrix(4 * size), None),
            down=maker.make(matrix(size, 2 * size), None),
        ),
        mlp_post_norm=None,
    )
    return DecoderWeights(matrix(size), (layer,), norm(), maker.make(matrix(size), None))
