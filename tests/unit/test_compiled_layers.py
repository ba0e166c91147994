"""All layers in one call of the kernels: what they compute, and what changes no bit of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from decoder_runs import compiled_hidden, empty_rows
from family_models import MODELS, sized_model

from flowforge.engine.attention.compiled import CompiledAttention, find_attention_library
from flowforge.engine.attention.reads import Span
from flowforge.engine.models.compiled_layers import compile_layers, find_layers_library
from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.decoder import Decoder
from flowforge.engine.models.weights import load_weights
from flowforge.engine.native.attention_library import AttentionLibrary
from flowforge.engine.native.layers_library import LayersCall, LayersLibrary

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 45
NAMES = (
    *("llama, biases", "llama, wide heads", "mistral, window", "qwen2", "qwen3", "smollm3"),
    *("phi3, half of each head turns", "gemma", "gemma2", "gemma3"),
)
# Hidden states are of the size of 1, behind three layers whose sums are in another order.
TOLERANCE = 2e-4


class TwoThreads(AttentionLibrary):
    """Whatever torch uses."""

    @property
    def num_threads(self) -> int:
        return 2


@dataclass(frozen=True)
class Both:
    """One model, whose layers are computed one by one or in one call."""

    single: Decoder
    compiled: Decoder


def load_both(name: str, directory: Path) -> Both:
    family, settings = MODELS[name]
    sized_model(family, {"hidden_size": 64, "num_attention_heads": 8} | settings).save_pretrained(
        directory
    )
    config = read_model_config(directory)
    weights = load_weights(directory, config, dtype=torch.float32, kernels="always").weights
    compiled = compile_layers(config, weights)
    assert compiled is not None, "these families have no layer that the kernels do not know"
    return Both(Decoder(config, weights), Decoder(config, weights, (), compiled))


@pytest.fixture
def library() -> AttentionLibrary:
    found = find_attention_library()
    if found is None:
        pytest.skip("there is no C compiler here")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_one_call_computes_what_the_layers_compute_one_by_one(
    library: AttentionLibrary, name: str, tmp_path: Path
) -> None:
    both = load_both(name, tmp_path)
    expected = compiled_hidden(both.single, library, LENGTH, LENGTH)

    found = compiled_hidden(both.compiled, library, LENGTH, LENGTH)

    assert not torch.equal(expected, found)  # the norms add up in another order
    assert (expected - found).abs().max().item() < TOLERANCE
    for chunk_len in (1, 7, 44):
        assert torch.equal(found, compiled_hidden(both.compiled, library, LENGTH, chunk_len))
    assert torch.equal(
        found, compiled_hidden(both.compiled, TwoThreads(library.path), LENGTH, LENGTH)
    )


@torch.inference_mode()
def test_a_row_has_the_same_bits_in_every_batch(library: AttentionLibrary, tmp_path: Path) -> None:
    decoder = load_both("llama, biases", tmp_path).compiled
    rows, ids = empty_rows(decoder), torch.arange(3, 12)

    def hidden_of_first_tokens(low: int, high: int) -> torch.Tensor:
        spans = tuple(Span(idx - low, 1, ((idx, 1),)) for idx in range(low, high))
        attention = CompiledAttention(library, rows, torch.arange(low, high), spans)
        positions = torch.zeros(high - low, dtype=torch.int64)
        return decoder.forward(ids[low:high], positions, attention)

    alone = torch.cat([hidden_of_first_tokens(idx, idx + 1) for idx in range(9)])

    for low, high in ((0, 9), (0, 2), (3, 8), (2, 9)):
        assert torch.equal(alone[low:high], hidden_of_first_tokens(low, high))


def test_layers_of_experts_are_torchs(tmp_path: Path) -> None:
    sized_model("Mixtral", {"num_local_experts": 4}).save_pretrained(tmp_path)
    config = read_model_config(tmp_path)
    weights = load_weights(tmp_path, config, dtype=torch.float32, kernels="measured").weights

    assert compile_layers(config, weights) is None


@pytest.mark.usefixtures("library")
def test_layers_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = LayersLibrary.run

    def wrong(library: LayersLibrary, call: LayersCall) -> None:
        call.epsilon += 0.1
        real(library, call)

    monkeypatch.setattr(LayersLibrary, "run", wrong)

    assert find_layers_library.__wrapped__() is None
    assert ["not used"] == [record.getMessage()[-8:] for record in caplog.records]
