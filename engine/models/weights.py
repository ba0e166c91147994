"""From a Hugging Face model directory to a Decoder: names, shapes and dtype, all checked first."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import torch

from flowforge.engine.models.checkpoint import Checkpoint, open_checkpoint, open_quantized
from flowforge.engine.models.compiled_layers import compile_layers
from flowforge.engine.models.config import ModelConfig, read_model_config
from flowforge.engine.models.decoder import (
    Decoder,
    DecoderWeights,
    LayerWeights,
    MlpWeights,
    QKNorm,
)
from flowforge.engine.models.experts import ExpertWeights
from flowforge.engine.models.kernel_choice import choose_kernels
from flowforge.engine.models.linears import LinearMaker, StoredMatrix
from flowforge.engine.models.quantized import KIND_OF_BYTES, QUANTIZED_FILE
from flowforge.engine.native.library import GROUP_SIZE, find_library
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flowforge.engine.config import Dtype
    from flowforge.engine.devices import ChosenDevice
    from flowforge.engine.models.linears import KernelChoice, KernelUse, Linear

_logger = logging.getLogger(__name__)

_EMBEDDING, _LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FINAL_NORM, _ATTENTION_NORM = "model.norm.weight", "input_layernorm"
# Buffers that old checkpoints carry and the configuration replaces.
_NEEDLESS_SUFFIX = ".rotary_emb.inv_freq"


def load_decoder(
    directory: Path,
    config: ModelConfig | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    kernels: KernelUse = "never",
) -> Decoder:
    """Load the decoder of a model directory (config.json and safetensors, one file or shards).

    Weights already in dtype on the CPU are views of the memory-mapped files: nothing is copied,
    and the files must stay as they are. dtype None keeps float32 weights exact; narrower ones
    become bfloat16 where the CPU computes in it, else float32. kernels: when products in float32
    are left to the engine's own; the first "measured" on a machine takes a second longer.
    Raises EngineError EN110 to EN114 (configuration) or EN120 to EN124 (weights).
    """
    config = read_model_config(directory) if config is None else config
    loaded = load_weights(directory, config, dtype=dtype, device=device, kernels=kernels)
    compiled = compile_layers(config, loaded.weights)
    return Decoder(config, loaded.weights, loaded.kernel_choices, compiled)


@dataclass(frozen=True, slots=True)
class CheckpointCut:
    """What a part of a model has of a checkpoint.

    config: of the part. cut: the part's checkpoint of a whole one; True where that holds groups.
    """

    config: ModelConfig
    cut: Callable[[Checkpoint, bool], Checkpoint]


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """All tensors of a decoder, and what was chosen for its matrices."""

    weights: DecoderWeights
    kernel_choices: list[KernelChoice]


def load_weights(
    directory: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    kernels: KernelUse = "never",
    part: CheckpointCut | None = None,
) -> LoadedWeights:
    """What `load_decoder` makes its decoder of. part: None for the whole model. Raises as it."""
    checkpoint = open_checkpoint(directory)
    _check_shapes(checkpoint, config, directory)
    if dtype is None:
        dtype = _choose_dtype(checkpoint.stored_dtype, has_bfloat16=_has_native_bfloat16())
    maker = LinearMaker(kernels if torch.device(device).type == "cpu" else "never")
    quantized = None if kernels == "never" else open_quantized(directory)
    if part is not None:
        config, checkpoint = part.config, part.cut(checkpoint, False)
        quantized = None if quantized is None else part.cut(quantized, True)
    source = _Source(checkpoint, quantized, maker, dtype, torch.device(device))
    weights = _read_weights(source, config)
    _report_unused(checkpoint, directory)
    choose_kernels(maker)
    return LoadedWeights(weights, maker.choices)


@dataclass(frozen=True, slots=True)
class WeightSize:
    """What `load_decoder` is to be told, and what the weights take then."""

    dtype: torch.dtype
    num_bytes: int
    kernels: KernelUse


def weight_size(
    directory: Path,
    choice: Dtype = "auto",
    *,
    is_deterministic: bool = False,
    device: ChosenDevice | None = None,
    part: CheckpointCut | None = None,
) -> WeightSize:
    """Known from the files' headers alone. choice, is_deterministic: as in `EngineConfig`.

    part: as in `load_weights`. device: None is the CPU, whose kernels alone know stored weights.
    Raises EngineError EN120 to EN124 (weights), EN125 when `choice` is int4 and the model has no
    4-bit weights, EN126 when there are no kernels for what is asked, EN234 when it is deterministic
    and not in float32, or on a GPU.
    """
    checkpoint = open_checkpoint(directory)
    cuda = None if device is None else device.cuda
    if cuda is not None:
        _require_possible_on_gpu(choice, is_deterministic=is_deterministic)
    kernels: KernelUse = "measured" if cuda is None else "never"
    match choice:
        case "auto":
            has_bfloat16 = _has_native_bfloat16() if cuda is None else cuda.has_bfloat16
            dtype = _choose_dtype(checkpoint.stored_dtype, has_bfloat16=has_bfloat16)
        case "int4":
            _require_4_bit(directory)
            dtype = torch.float32
        case "float32" | "bfloat16":
            dtype = torch.float32 if choice == "float32" else torch.bfloat16
            kernels = "never"
        case _:
            assert_never(choice)
    if is_deterministic:
        _require_deterministic(dtype)
        kernels = "always"
    if part is not None:
        checkpoint = part.cut(checkpoint, False)
    num_bytes = checkpoint.num_values * dtype.itemsize
    if kernels != "never" and dtype == torch.float32 and find_library() is not None:
        quantized = open_quantized(directory)
        if quantized is not None:
            quantized = quantized if part is None else part.cut(quantized, True)
            num_bytes += quantized.num_values
        elif checkpoint.stored_dtype == torch.bfloat16:
            num_bytes += checkpoint.num_values * torch.bfloat16.itemsize
    return WeightSize(dtype, num_bytes, kernels)


class _Source:
    """Tensors of a checkpoint in the dtype and on the device they will run in."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        quantized: Checkpoint | None,
        maker: LinearMaker,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._checkpoint = checkpoint
        self._quantized = quantized
        self._maker = maker
        self._dtype = dtype
        self._device = device

    def linear(self, prefix: str, names: Sequence[str], *, has_bias: bool = False) -> Linear:
        """The product with matrices on top of each other."""
        full_names = [f"{prefix}.{name}.weight" for name in names]
        bias = self.stacked(prefix, names, "bias") if has_bias else None
        return self._linear(full_names, self.stacked(prefix, names), bias)

    def lm_head(self, name: str, weight: torch.Tensor) -> Linear:
        """The product with one matrix that is there already."""
        return self._linear([name], weight, None)

    def _linear(
        self, names: Sequence[str], weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Linear:
        return self._maker.make(weight, bias, self._stored(names))

    def _stored(self, names: Sequence[str]) -> StoredMatrix | None:
        """What the kernels read instead of float32, if the files have it."""
        if self._maker.use == "never":
            return None
        quantized = self._quantized
        if quantized is not None and all(name in quantized for name in names):
            sizes = {self._group_bytes(quantized, name) for name in names}
            if len(sizes) == 1:
                return StoredMatrix(KIND_OF_BYTES[sizes.pop()], quantized.stacked(names))
        if self._checkpoint.dtypes(names) == {torch.bfloat16}:
            return StoredMatrix("bfloat16", self._checkpoint.stacked(names))
        return None

    def refuse_to_be_deterministic(self, what: str) -> None:
        """Raise EngineError EN234 where the kernels are to do all and cannot do this."""
        if self._maker.use == "always":
            raise EngineError(
                "EN234",
                f"{what} cannot be computed deterministically",
                help="leave is_deterministic out",
            )

    def _group_bytes(self, quantized: Checkpoint, name: str) -> int:
        num_rows, num_columns = self._checkpoint.shape(name)
        expected, found = (num_rows, num_columns // GROUP_SIZE), quantized.shape(name)
        if found[:2] != expected:
            raise EngineError(
                "EN113",
                f"{name!r} has {list(found[:2])} groups in {QUANTIZED_FILE!r}, "
                f"expected {list(expected)}",
                help="both weight files must be of one model: remove the folder and convert again",
            )
        return found[2]

    def stacked(self, prefix: str, names: Sequence[str], kind: str = "weight") -> torch.Tensor:
        full_names = [f"{prefix}.{name}.{kind}" for name in names]
        return self._checkpoint.stacked(full_names).to(device=self._device, dtype=self._dtype)

    def tensor(self, name: str) -> torch.Tensor:
        return self._checkpoint.tensor(name).to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, config: ModelConfig) -> torch.Tensor:
        if not config.family.has_gemma_numerics:
            return self.tensor(name)
        # Stored as the distance from 1, which bfloat16 would round away.
        return self._checkpoint.tensor(name).to(device=self._device, dtype=torch.float32) + 1


def _read_weights(source: _Source, config: ModelConfig) -> DecoderWeights:
    embedding = source.tensor(_EMBEDDING)
    head = _EMBEDDING if config.is_tied else _LM_HEAD
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_read_layer(source, config, idx) for idx in range(config.num_layers)),
        final_norm=source.norm(_FINAL_NORM, config),
        lm_head=source.lm_head(head, embedding if config.is_tied else source.tensor(_LM_HEAD)),
    )


def _read_layer(source: _Source, config: ModelConfig, layer_idx: int) -> LayerWeights:
    prefix = f"model.layers.{layer_idx}"
    attention = f"{prefix}.self_attn"
    norms = _norm_names(config)

    def norm(name: str | None) -> torch.Tensor | None:
        return None if name is None else source.norm(f"{prefix}.{name}.weight", config)

    return LayerWeights(
        attention_norm=source.norm(f"{prefix}.{_ATTENTION_NORM}.weight", config),
        qkv=source.linear(attention, _qkv_names(config), has_bias=config.has_qkv_bias),
        qk_norm=_read_qk_norm(source, attention, config) if config.family.has_qk_norm else None,
        output=source.linear(attention, ("o_proj",), has_bias=config.has_output_bias),
        attention_post_norm=norm(norms.attention_post),
        mlp_norm=source.norm(f"{prefix}.{norms.mlp}.weight", config),
        mlp=(
            _read_experts(source, f"{prefix}.{_experts_name(config)}", config)
            if config.layers[layer_idx].has_experts
            else _read_mlp(source, f"{prefix}.mlp", config)
        ),
        mlp_post_norm=norm(norms.mlp_post),
    )


def _read_qk_norm(source: _Source, attention: str, config: ModelConfig) -> QKNorm:
    q, k = (source.norm(f"{attention}.{name}.weight", config) for name in ("q_norm", "k_norm"))
    return QKNorm(q, k)


def _read_mlp(source: _Source, mlp: str, config: ModelConfig) -> MlpWeights:
    has_bias = config.has_mlp_bias
    return MlpWeights(
        gate_up=source.linear(mlp, _gate_up_names(config), has_bias=has_bias),
        down=source.linear(mlp, ("down_proj",), has_bias=has_bias),
    )


def _read_experts(source: _Source, prefix: str, config: ModelConfig) -> ExpertWeights:
    source.refuse_to_be_deterministic("a mixture of experts")
    experts = config.experts
    assert experts is not None, "a layer of experts has their configuration"
    gate, up, down = _expert_matrix_names(config)
    every = range(experts.num_experts)
    gates_ups = [f"experts.{idx}.{name}" for idx in every for name in (gate, up)]
    downs = [f"experts.{idx}.{down}" for idx in every]
    size = 2 * experts.intermediate_size
    return ExpertWeights(
        router=source.tensor(f"{prefix}.gate.weight"),
        gate_up=source.stacked(prefix, gates_ups).view(-1, size, config.hidden_size),
        down=source.stacked(prefix, downs).view(-1, config.hidden_size, size // 2),
    )


# --- what the tensors of a layer are called ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NormNames:
    """The norms of a layer behind the first; Gemma 2 uses the usual name of one for another."""

    mlp: str
    attention_post: str | None = None
    mlp_post: str | None = None


def _norm_names(config: ModelConfig) -> _NormNames:
    if not config.family.has_post_norms:
        return _NormNames("post_attention_layernorm")
    return _NormNames(
        "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
    )


def _qkv_names(config: ModelConfig) -> tuple[str, ...]:
    return ("qkv_proj",) if config.family.stores_fused else ("q_proj", "k_proj", "v_proj")


def _gate_up_names(config: ModelConfig) -> tuple[str, ...]:
    return ("gate_up_proj",) if config.family.stores_fused else ("gate_proj", "up_proj")


def _experts_name(config: ModelConfig) -> str:
    return "block_sparse_moe" if config.family.name == "mixtral" else "mlp"


def _expert_matrix_names(config: ModelConfig) -> tuple[str, str, str]:
    """Gate, up, down."""
    is_mixtral = config.family.name == "mixtral"
    return ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")


# --- does the configuration fit the tensors? -----------------------------------------------------

_Expected = tuple[str, tuple[int, ...], str]  # tensor, shape, the config keys it follows from


def _check_shapes(checkpoint: Checkpoint, config: ModelConfig, directory: Path) -> None:
    """Hold every shape against the configuration before anything is computed with one."""
    for layer_idx in range(config.num_layers):
        if f"model.layers.{layer_idx}.{_ATTENTION_NORM}.weight" not in checkpoint:
            raise _misfit(
                directory, "num_hidden_layers", config.num_layers, f"tensors of {layer_idx} layers"
            )
    for name, expected, keys in _expected_shapes(config):
        found = checkpoint.shape(name)
        if found != expected:
            raise _misfit(
                directory, keys, list(expected), f"{list(found)} in {name!r}", "which asks for"
            )
    if f"model.layers.{config.num_layers}.{_ATTENTION_NORM}.weight" in checkpoint:
        raise _misfit(directory, "num_hidden_layers", config.num_layers, "tensors of more layers")


def _expected_shapes(config: ModelConfig) -> Iterator[_Expected]:
    hidden = config.hidden_size
    yield _EMBEDDING, (config.vocab_size, hidden), "vocab_size and hidden_size"
    yield _FINAL_NORM, (hidden,), "hidden_size"
    if not config.is_tied:
        yield _LM_HEAD, (config.vocab_size, hidden), "vocab_size and hidden_size"
    for layer_idx, layer in enumerate(config.layers):
        mlp = _expected_experts(config) if layer.has_experts else _expected_mlp(config)
        for name, shape, keys in (*_expected_norms(config), *_expected_attention(config), *mlp):
            yield f"model.layers.{layer_idx}.{name}", shape, keys


def _expected_norms(config: ModelConfig) -> Iterator[_Expected]:
    norms = _norm_names(config)
    for name in (_ATTENTION_NORM, norms.mlp, norms.attention_post, norms.mlp_post):
        if name is not None:
            yield f"{name}.weight", (config.hidden_size,), "hidden_size"
    if config.family.has_qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,), "head_dim"
        yield "self_attn.k_norm.weight", (config.head_dim,), "head_dim"


def _expected_attention(config: ModelConfig) -> Iterator[_Expected]:
    hidden = config.hidden_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    q_keys = "num_attention_heads, head_dim and hidden_size"
    kv_keys = "num_key_value_heads, head_dim and hidden_size"
    names = _qkv_names(config)
    sizes = (q + 2 * kv,) if len(names) == 1 else (q, kv, kv)
    all_keys = (q_keys, kv_keys, kv_keys)
    for name, num_rows, keys in zip(names, sizes, all_keys[: len(names)], strict=True):
        matrix = f"self_attn.{name}"
        yield from _expected_matrix(matrix, num_rows, hidden, config.has_qkv_bias, keys)
    yield from _expected_matrix("self_attn.o_proj", hidden, q, config.has_output_bias, q_keys)


def _expected_mlp(config: ModelConfig) -> Iterator[_Expected]:
    hidden, size, has_bias = config.hidden_size, config.intermediate_size, config.has_mlp_bias
    keys = "intermediate_size and hidden_size"
    names = _gate_up_names(config)
    for name in names:
        num_rows = 2 * size // len(names)
        yield from _expected_matrix(f"mlp.{name}", num_rows, hidden, has_bias, keys)
    yield from _expected_matrix("mlp.down_proj", hidden, size, has_bias, keys)


def _expected_experts(config: ModelConfig) -> Iterator[_Expected]:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None, "a layer of experts has their configuration"
    prefix = _experts_name(config)
    keys = "the intermediate size of an expert and hidden_size"
    gate, up, down = _expert_matrix_names(config)
    yield f"{prefix}.gate.weight", (experts.num_experts, hidden), "num_experts and hidden_size"
    for idx in range(experts.num_experts):
        expert = f"{prefix}.experts.{idx}"
        for name in (gate, up):
            yield f"{expert}.{name}.weight", (experts.intermediate_size, hidden), keys
        yield f"{expert}.{down}.weight", (hidden, experts.intermediate_size), keys


def _expected_matrix(
    name: str, num_rows: int, num_columns: int, has_bias: bool, keys: str
) -> Iterator[_Expected]:
    yield f"{name}.weight", (num_rows, num_columns), keys
    if has_bias:
        yield f"{name}.bias", (num_rows,), keys


def _misfit(
    directory: Path, key: str, expected: object, found: str, verb: str = "which is"
) -> EngineError:
    return EngineError(
        "EN113",
        f"config.json in {str(directory)!r} does not fit its weights: {key}, {verb} {expected}; "
        f"found {found}",
        help="config.json and weights must be of one model: fetch both again",
    )


def _report_unused(checkpoint: Checkpoint, directory: Path) -> None:
    unused = [name for name in checkpoint.unused() if not name.endswith(_NEEDLESS_SUFFIX)]
    # A bias that config.json does not mention would change every result if it were dropped.
    if biases := [name for name in unused if name.endswith(".bias")]:
        raise _misfit(directory, "attention_bias or mlp_bias", "false", f"tensor {biases[0]!r}")
    if unused:
        names = ", ".join(unused[:3])
        _logger.warning("%s: %d tensors are not used: %s", directory.name, len(unused), names)


# --- dtype ---------------------------------------------------------------------------------------


def _choose_dtype(stored: torch.dtype, *, has_bfloat16: bool) -> torch.dtype:
    """Never round below what was published; never emulate what the hardware lacks."""
    if stored.itemsize > torch.bfloat16.itemsize:
        return torch.float32
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _require_possible_on_gpu(choice: Dtype, *, is_deterministic: bool) -> None:
    if is_deterministic:
        raise EngineError(
            "EN234",
            "is_deterministic needs the kernels of the CPU, and the engine computes on a GPU",
            help="set device to cpu, or leave is_deterministic out",
        )
    if choice == "int4":
        raise EngineError(
            "EN126",
            "dtype int4 is multiplied by the kernels of the CPU, and the engine computes on a GPU",
            help="set device to cpu, or take dtype auto",
        )


def _require_deterministic(dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        raise EngineError(
            "EN234",
            f"is_deterministic needs float32 arithmetic, got {str(dtype).removeprefix('torch.')}",
            help="set dtype to float32, or leave is_deterministic out",
        )
    _require_library("is_deterministic", "leave it out")


def _require_library(option: str, instead: str) -> None:
    if find_library() is None:
        raise EngineError(
            "EN126",
            f"{option} needs compiled kernels, and they cannot be made on this machine",
            help=f"install a C compiler (cc, gcc or clang), or {instead}",
        )


def _require_4_bit(directory: Path) -> None:
    quantized = open_quantized(directory)
    kinds = {"q4_0", "q4_1"}
    if quantized is None or not kinds & {KIND_OF_BYTES[size] for size in quantized.last_sizes()}:
        raise EngineError(
            "EN125",
            f"dtype int4 needs a model with 4-bit weights, {str(directory)!r} has none",
            help="give a GGUF file of type Q4_0 or Q4_1, or take dtype auto; a GGUF model that was "
            "converted by an older version is converted again when its folder is removed",
        )
    _require_library("dtype int4", "take dtype auto")


def _has_native_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False  # not Linux: float32 is right everywhere
    return "amx_bf16" in flags or "avx512_bf16" in flags
