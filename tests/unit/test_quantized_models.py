"""Models with weights in 4 and 8 bits, from GGUF files to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from decoder_runs import compiled_hidden, dense_logits
from gguf_files import TOKENS
from quantized_models import converted
from safetensors.torch import load_file, save_file

from flowforge.engine.attention.compiled import find_attention_library
from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.models.compiled_layers import compile_layers
from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.decoder import Decoder
from flowforge.engine.models.gguf_conversion import converted_bytes
from flowforge.engine.models.linears import ALL_ROWS
from flowforge.engine.models.weight_size import weight_size
from flowforge.engine.models.weights import load_decoder, load_weights
from flowforge.engine.native.library import find_library
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 1e-4
KINDS = {
    "ffn_down.weight": gguf.GGMLQuantizationType.Q4_0,
    "token_embd.weight": gguf.GGMLQuantizationType.Q8_0,
    "norm.weight": gguf.GGMLQuantizationType.F32,
    "weight": gguf.GGMLQuantizationType.Q4_1,
}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return converted(tmp_path, KINDS)


@pytest.fixture
def _kernels() -> None:
    if find_library() is None:
        pytest.skip("there is no C compiler on this machine")


@pytest.mark.usefixtures("_kernels")
def test_logits_from_groups_are_those_of_the_float32_weights(model_dir: Path) -> None:
    token_ids = torch.arange(30)
    expected = dense_logits(load_decoder(model_dir), token_ids)

    found = dense_logits(load_decoder(model_dir, kernels="always"), token_ids)

    assert (expected - found).abs().max().item() < TOLERANCE


@pytest.mark.usefixtures("_kernels")
def test_kernels_read_the_groups_and_not_the_float32_file(model_dir: Path) -> None:
    groups = load_file(model_dir / "quantized.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file(groups | {name: torch.zeros_like(groups[name])}, model_dir / "quantized.safetensors")
    before = dense_logits(load_decoder(model_dir), torch.arange(9))

    found = dense_logits(load_decoder(model_dir, kernels="always"), torch.arange(9))

    assert (before - found).abs().max().item() > 0.01


@pytest.mark.usefixtures("_kernels")
def test_int4_multiplies_in_integers_close_to_the_exact_logits(model_dir: Path) -> None:
    token_ids = torch.arange(30)
    expected = dense_logits(load_decoder(model_dir), token_ids)
    size = weight_size(model_dir, "int4")

    found = dense_logits(load_decoder(model_dir, kernels=size.kernels), token_ids)

    assert ("rounded", torch.float32) == (size.kernels, size.dtype)
    assert "rounded" == weight_size(model_dir, "int4", is_deterministic=True).kernels
    assert TOLERANCE < ((found - expected).norm() / expected.norm()).item() < 0.1


@pytest.mark.usefixtures("_kernels")
@torch.inference_mode()
def test_layers_in_integers_are_the_same_in_one_call_and_one_by_one(tmp_path: Path) -> None:
    model_dir = converted(tmp_path, KINDS, vocab_size=64)
    config = read_model_config(model_dir)
    weights = load_weights(model_dir, config, kernels="rounded").weights
    compiled = compile_layers(config, weights)
    library = find_attention_library()
    assert compiled is not None
    assert library is not None
    decoder = Decoder(config, weights, (), compiled)
    expected = compiled_hidden(Decoder(config, weights), library, 45, 45)

    found = compiled_hidden(decoder, library, 45, 45)

    # Integers that rounding puts next to each other: norms add up in another order.
    assert (found - expected).norm() / expected.norm() < 0.01
    for chunk_len in (1, 7, 44):
        assert torch.equal(found, compiled_hidden(decoder, library, 45, chunk_len))


@pytest.mark.usefixtures("_kernels")
def test_weights_in_both_forms_count_as_memory(model_dir: Path, tmp_path: Path) -> None:
    groups = load_file(model_dir / "quantized.safetensors")
    group_bytes = sum(tensor.numel() for tensor in groups.values())

    size = weight_size(model_dir)

    assert weight_size(model_dir, "float32").num_bytes + group_bytes == size.num_bytes
    assert ("measured", torch.float32) == (size.kernels, size.dtype)
    assert size.num_bytes == converted_bytes(tmp_path / "m.gguf")
    assert weight_size(model_dir, "bfloat16").num_bytes * 2 + group_bytes == size.num_bytes


def test_int4_is_refused_for_a_model_without_4_bit_weights(tmp_path: Path) -> None:
    model_dir = converted(tmp_path, {"ffn_down.weight": gguf.GGMLQuantizationType.Q8_0})

    with pytest.raises(EngineError, match="dtype int4 needs a model with 4-bit weights") as caught:
        weight_size(model_dir, "int4")

    assert "EN125" == caught.value.code


def test_int4_without_a_compiler_is_refused(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowforge.engine.models.weight_size.find_library", lambda: None)

    with pytest.raises(EngineError, match="needs compiled kernels") as caught:
        weight_size(model_dir, "int4")

    assert "EN126" == caught.value.code
    assert weight_size(model_dir).num_bytes == weight_size(model_dir, "float32").num_bytes


def test_groups_of_another_model_are_refused(model_dir: Path) -> None:
    groups = load_file(model_dir / "quantized.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    save_file(groups | {name: groups[name][:32].clone()}, model_dir / "quantized.safetensors")

    with pytest.raises(
        EngineError, match=r"has \[32, 2\] groups in .* expected \[64, 2\]"
    ) as caught:
        load_decoder(model_dir, kernels="measured")

    assert "EN113" == caught.value.code


@pytest.mark.parametrize(
    "tensor", [torch.zeros((2, 3), dtype=torch.uint8), torch.zeros((2, 3, 18))]
)
def test_a_damaged_file_of_groups_is_refused(model_dir: Path, tensor: torch.Tensor) -> None:
    save_file({"model.embed_tokens.weight": tensor}, model_dir / "quantized.safetensors")

    with pytest.raises(EngineError, match="truncated or damaged") as caught:
        load_decoder(model_dir, kernels="measured")

    assert "EN122" == caught.value.code


def test_a_model_that_is_not_quantised_has_no_second_file(tmp_path: Path) -> None:
    model_dir = converted(tmp_path, {})

    assert not (model_dir / "quantized.safetensors").exists()


@pytest.mark.usefixtures("_kernels")
async def test_statistics_say_which_kernels_were_chosen(tmp_path: Path) -> None:
    directory = converted(tmp_path, KINDS, vocab_size=2048)
    config = EngineConfig(num_pages=4, num_threads=1)

    async with engine_for(directory, vocab_size=len(TOKENS), config=config) as engine:
        compute = engine.statistics().compute

    (head,) = compute.kernels  # the others are too small to be measured
    assert ("q4_1", 2048, 64) == (head.kind, head.num_rows_out, head.num_columns_in)
    assert 0 <= head.most_rows <= ALL_ROWS
    assert not compute.is_deterministic  # small matrices are torch's
    assert ("float32", 1) == (compute.dtype, compute.num_threads)
