"""Models whose matrices are kept in few bits alone, as a GPU has them: from files to logits."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from decoder_runs import dense_logits
from kernel_heads import on_the_cpu
from quantized_models import converted
from safetensors.torch import load_file, save_file

from flowforge.engine.devices import CudaDevice, CudaFinding, choose_device
from flowforge.engine.float8 import from_float8, to_float8
from flowforge.engine.models import kernel_choice, linears, weights
from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.decoder import MlpWeights
from flowforge.engine.models.linears import (
    ChosenLinear,
    JoinedLinear,
    KernelUse,
    LinearMaker,
    ProductKernels,
    TorchLinear,
)
from flowforge.engine.models.packed import PackedMatrix, UnpackedLinear, pack_groups
from flowforge.engine.models.weight_size import weight_size
from flowforge.engine.models.weights import load_decoder, load_weights
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.models.decoder import DecoderWeights
    from flowforge.engine.models.linears import Linear

Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
# V in other groups than Q and K, and a matrix that has none.
KINDS = {
    "attn_v.weight": Q8_0,
    "ffn_down.weight": gguf.GGMLQuantizationType.F32,
    "norm.weight": gguf.GGMLQuantizationType.F32,
    "weight": Q4_1,
}
# The same numbers in float32, added up in another order over rows of at most 96.
TOLERANCE = 1e-4
GPU = CudaDevice(0, "a card", (9, 0), 40 << 30, 40 << 30)
PLACE = choose_device("cuda", CudaFinding((GPU,)))


@pytest.fixture(scope="module", params=["one kind", "several kinds"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = KINDS if request.param == "several kinds" else {"norm.weight": KINDS["norm.weight"]}
    return converted(tmp_path_factory.mktemp("gguf"), kinds | {"weight": Q4_1})


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's kernels for products, in the interpreter."""
    from flowforge.engine.kernels.product_kernels import PackedKernels

    def found(device: torch.device, use: KernelUse, _: torch.dtype) -> ProductKernels | None:
        return None if use == "never" else PackedKernels(device)

    monkeypatch.setattr(weights, "find_kernels", found)


@on_the_cpu
@pytest.mark.usefixtures("_interpreted")
def test_logits_from_packed_groups_are_those_of_the_cpu_s_path(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to four rows by the kernel, more by unpacking."""
    with monkeypatch.context() as cpu:
        cpu.setattr(weights, "find_kernels", linears.find_kernels)
        expected = dense_logits(load_decoder(model_dir, kernels="always"), torch.arange(9))

    decoder = load_decoder(model_dir, dtype=torch.float32, kernels="packed", kernel_rows=4)

    assert (expected - dense_logits(decoder, torch.arange(9))).abs().max().item() < TOLERANCE
    assert (expected[:4] - dense_logits(decoder, torch.arange(4))).abs().max() < TOLERANCE
    assert {4} == {choice.most_rows for choice in decoder.kernel_choices}
    assert "int4" in {choice.shape.kind for choice in decoder.kernel_choices}


@on_the_cpu
@pytest.mark.usefixtures("_interpreted")
def test_auto_keeps_both_forms_and_the_kernels_read_the_groups(model_dir: Path) -> None:
    expected = dense_logits(load_decoder(model_dir), torch.arange(9))

    decoder = load_decoder(model_dir, dtype=torch.float32, kernels="measured", kernel_rows=64)

    # All matrices are smaller than what pays.
    assert () == decoder.kernel_choices
    assert (expected - dense_logits(decoder, torch.arange(9))).abs().max().item() < TOLERANCE


def linears_of(loaded: DecoderWeights) -> list[Linear]:
    found: list[Linear] = [loaded.lm_head]
    for layer in loaded.layers:
        assert isinstance(layer.mlp, MlpWeights)
        found += [layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down]
    return [
        part for one in found for part in (one.parts if isinstance(one, JoinedLinear) else [one])
    ]


def bytes_of(linear: object) -> int:
    match linear:
        case ChosenLinear(_, many, _):
            return bytes_of(many)
        case UnpackedLinear(PackedMatrix(_, values, scales, mins), _):
            return values.nbytes + scales.nbytes + (0 if mins is None else mins.nbytes)
        case TorchLinear(weight, _):
            return weight.nbytes
        case _:
            raise AssertionError(linear)


@pytest.mark.parametrize("choice", ["int4", "float8"])
def test_a_gpu_is_told_what_packed_weights_take(choice: str, model_dir: Path) -> None:
    size = weight_size(model_dir, choice, device=PLACE)  # type: ignore[arg-type]  # of parameters

    assert (torch.bfloat16, "packed" if choice == "int4" else "float8") == (
        size.dtype,
        size.kernels,
    )
    config = read_model_config(model_dir)
    loaded = load_weights(model_dir, config, dtype=size.dtype, kernels=size.kernels).weights

    norms = [loaded.final_norm]
    for layer in loaded.layers:
        norms += [layer.attention_norm, layer.mlp_norm]
    products = sum(bytes_of(linear) for linear in linears_of(loaded))
    beside = sum(norm.nbytes for norm in norms) + loaded.embedding.nbytes
    assert products + beside == size.num_bytes
    assert size.num_bytes < weight_size(model_dir, "bfloat16", device=PLACE).num_bytes


def test_all_matrices_are_rounded_to_float8_and_nothing_else(
    model_dir: Path, tmp_path: Path
) -> None:
    """On a machine without kernels: matrices are unpacked for every product."""
    shutil.copytree(model_dir, tmp_path / "rounded")
    tensors = load_file(model_dir / "model.safetensors")
    for name, tensor in tensors.items():
        if "_proj" in name or "lm_head" in name:
            tensors[name] = from_float8(*to_float8(tensor), torch.float32)
    save_file(tensors, tmp_path / "rounded" / "model.safetensors")
    expected = dense_logits(load_decoder(tmp_path / "rounded"), torch.arange(9))

    decoder = load_decoder(model_dir, dtype=torch.float32, kernels="float8")

    assert (expected - dense_logits(decoder, torch.arange(9))).abs().max().item() < TOLERANCE
    exact = dense_logits(load_decoder(model_dir), torch.arange(9))
    # Weights are off by up to 1/16 each, evenly spread.
    assert 0.01 < ((expected - exact).norm() / exact.norm()).item() < 0.2


def test_what_is_not_there_to_be_multiplied_is_refused(tmp_path: Path) -> None:
    exact = converted(tmp_path, {})
    with pytest.raises(
        EngineError, match="kernels of a GPU, and the engine computes on the CPU"
    ) as caught:
        weight_size(exact, "float8")
    assert "EN126" == caught.value.code
    for choice, bits in (("int4", "4-bit"), ("int8", "8-bit")):
        with pytest.raises(
            EngineError, match=f"dtype {choice} needs a model with {bits}"
        ) as caught:
            weight_size(exact, choice, device=PLACE)  # type: ignore[arg-type]  # of a loop
        assert "EN125" == caught.value.code


@on_the_cpu
def test_a_gpu_s_choices_are_measured_once_and_kept_in_a_file_of_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowforge.engine.kernels.product_kernels import PackedKernels

    monkeypatch.setenv("FLOWFORGE_HOME", str(tmp_path))
    groups = torch.randint(0, 256, (16, 2, 20), dtype=torch.uint8)
    groups[..., 1:4:2] = 0
    maker = LinearMaker("packed", PackedKernels(torch.device("cpu")), torch.bfloat16)
    maker.pack(pack_groups("q4_1", groups), None)

    kernel_choice.choose_kernels(maker)

    (choice,) = maker.choices
    assert choice.most_rows <= 64
    (path,) = tmp_path.rglob("products-interpreted-*.json")
    path.write_text('{"int4 16x64 in torch.bfloat16": 7}', encoding="utf-8")
    kernel_choice.choose_kernels(maker)
    assert 7 == choice.most_rows
    # More than the kernels are for is not asked of them.
    kernel_choice.choose_kernels(maker, 1000)
    assert 64 == choice.most_rows
