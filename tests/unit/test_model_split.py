"""What each rank of a split model has: numbers, tensors, and what all ranks compute together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from decoder_runs import dense_logits
from family_models import MODELS, sized_model
from hypothesis import given
from hypothesis import strategies as st
from quantized_models import converted

from flowforge.engine.models.checkpoint import open_checkpoint, open_quantized
from flowforge.engine.models.config import parse_model_config, read_model_config
from flowforge.engine.models.weight_size import weight_size
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.native.library import find_library
from flowforge.engine.parallel.checkpoint_part import CheckpointPart
from flowforge.engine.parallel.group import RankGroup
from flowforge.engine.parallel.loading import PartLoading
from flowforge.engine.parallel.split import Rank, part_of, split_model
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import KernelUse

# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4
# Of the smallest vocabulary here.
IDS = torch.arange(30)


def saved(directory: Path, name: str, **settings: object) -> Path:
    family, of_family = MODELS[name]
    sized_model(family, {**of_family, **settings}).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), "llama, grouped heads")


@given(st.integers(1, 400), st.integers(1, 9), st.sampled_from([1, 8, 32]))
def test_parts_are_all_of_it_once_and_differ_by_one_unit_at_most(
    units: int, count: int, unit: int
) -> None:
    parts = [part_of(units * unit, Rank(index, count), unit) for index in range(count)]

    assert list(range(units * unit)) == [one for part in parts for one in part]
    assert all(len(part) % unit == 0 for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= unit
    assert max(map(len, parts)) == len(parts[0]), "pages are sized by the first rank"


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
def test_each_query_head_is_on_one_rank_with_its_kv_head(
    num_kv_heads: int, group: int, count: int
) -> None:
    num_heads = num_kv_heads * group
    if num_heads < count:
        return
    parts = [split_model(of_heads(num_heads, num_kv_heads), Rank(i, count)) for i in range(count)]

    assert list(range(num_heads)) == [head for part in parts for head in part.heads]
    for part in parts:
        assert [head // group for head in part.heads] == [
            part.kv_heads.start + index // (len(part.heads) // len(part.kv_heads))
            for index in range(len(part.heads))
        ]


def of_heads(num_heads: int, num_kv_heads: int) -> ModelConfig:
    content = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 8,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    return parse_model_config(content, Path("config.json"), ())


def test_a_model_with_fewer_heads_than_ranks_is_refused(llama_dir: Path) -> None:
    with pytest.raises(EngineError, match="only 6 attention heads") as caught:
        split_model(read_model_config(llama_dir), Rank(0, 7))

    assert "EN236" == caught.value.code
    assert "set tp to at most 6" == caught.value.help


def test_experts_too_narrow_to_be_cut_are_refused(tmp_path: Path) -> None:
    config = read_model_config(saved(tmp_path, "qwen3_moe"))

    with pytest.raises(EngineError, match="times 8 columns of an expert") as caught:
        split_model(config, Rank(0, 3))

    assert "EN236" == caught.value.code


def test_the_parts_of_a_checkpoint_weigh_as_much_as_the_whole(llama_dir: Path) -> None:
    config = read_model_config(llama_dir)
    loadings = [PartLoading(llama_dir, config, Rank(index, 2)) for index in range(2)]
    of_parts = [weight_size(llama_dir, "float32", part=one.cut).num_bytes for one in loadings]
    norms = (2 * config.num_layers + 1) * config.hidden_size * 4

    assert weight_size(llama_dir, "float32").num_bytes + norms == sum(of_parts)


def logits_of_ranks(
    directory: Path, count: int, tmp_path: Path, kernels: KernelUse = "never"
) -> torch.Tensor:
    """By ranks that are threads: they meet over gloo as processes do."""
    config = read_model_config(directory)

    def compute(index: int) -> torch.Tensor:
        loading = PartLoading(directory, config, Rank(index, count))
        loaded = loading.load(torch.float32, "cpu", kernels)
        group = RankGroup(loading.rank, tmp_path / "meeting", torch.device("cpu"))
        return dense_logits(loading.decoder(loaded, group), IDS)

    with ThreadPoolExecutor(count) as threads:
        found = list(threads.map(compute, range(count)))
    assert config.vocab_size == found[0].shape[1]
    assert config.vocab_size > found[-1].shape[1], "logits are gathered on the first rank only"
    return found[0]


@pytest.mark.parametrize(
    ("name", "count", "settings"),
    [
        # Two ranks to each KV head; 5 of them, unevenly; one KV head for all.
        ("llama, grouped heads", 4, {}),
        ("llama, tied", 5, {}),
        ("phi3", 3, {"num_key_value_heads": 1}),
        ("llama, biases", 3, {}),
        ("mixtral", 3, {}),
        # 121 ids and 90 columns: nothing is even.
        ("gemma2", 2, {"vocab_size": 121, "intermediate_size": 90}),
    ],
)
def test_uneven_ranks_compute_what_one_process_does(
    tmp_path: Path, name: str, count: int, settings: dict[str, object]
) -> None:
    directory = saved(tmp_path / "model", name, **settings)
    expected = dense_logits(load_decoder(directory, dtype=torch.float32), IDS)

    found = logits_of_ranks(directory, count, tmp_path)

    assert (expected - found).abs().max().item() < TOLERANCE


@pytest.fixture(scope="module")
def quantized_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("quantized")
    kinds = {
        "norm.weight": gguf.GGMLQuantizationType.F32,
        "weight": gguf.GGMLQuantizationType.Q4_1,
    }
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3}
    return converted(directory, kinds, hidden_size=96, **heads)


def test_stored_groups_are_cut_like_their_float32_twins(quantized_dir: Path) -> None:
    config = read_model_config(quantized_dir)
    whole = open_quantized(quantized_dir)
    assert whole is not None
    for index in range(2):
        part = split_model(config, Rank(index, 2))
        groups = CheckpointPart(whole, config, part, is_grouped=True)
        floats = CheckpointPart(open_checkpoint(quantized_dir), config, part)

        for name in ("q_proj", "k_proj", "o_proj"):
            full = f"model.layers.0.self_attn.{name}.weight"
            num_rows, num_columns = floats.shape(full)
            assert (num_rows, num_columns // 32, 20) == groups.shape(full)
            assert groups.shape(full) == tuple(groups.tensor(full).shape)
            assert (num_rows, num_columns) == tuple(floats.tensor(full).shape)


def test_groups_that_a_border_cuts_are_left_to_torch(quantized_dir: Path) -> None:
    config = read_model_config(quantized_dir)
    whole = open_quantized(quantized_dir)
    assert whole is not None
    # 6 heads of 16 columns on 3 ranks: 32 columns each; on 6 ranks 16, half a group.
    name = "model.layers.0.self_attn.o_proj.weight"

    for count, is_whole in ((3, True), (6, False)):
        part = split_model(config, Rank(1, count))
        assert is_whole == (name in CheckpointPart(whole, config, part, is_grouped=True))


def test_ranks_multiply_stored_groups_as_one_process_does(
    quantized_dir: Path, tmp_path: Path
) -> None:
    if find_library() is None:
        pytest.skip("there is no C compiler on this machine")
    expected = dense_logits(load_decoder(quantized_dir), IDS)

    found = logits_of_ranks(quantized_dir, 3, tmp_path, "always")

    assert (expected - found).abs().max().item() < TOLERANCE
