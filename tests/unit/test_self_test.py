from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from random_models import tiny_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import load_core
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.native.layers_library import LayersCall, LayersLibrary
from flowforge.engine.native.library import find_library
from flowforge.engine.self_test import has_same_bits
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

DETERMINISTIC = EngineConfig(num_pages=4, is_deterministic=True)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    if find_library() is None:
        pytest.skip("there is no C compiler on this machine")
    tiny_llama(intermediate_size=64).save_pretrained(tmp_path)
    return tmp_path


def test_statistics_say_that_the_kernels_gave_the_same_bits(model_dir: Path) -> None:
    core = load_core(model_dir, vocab_size=120, config=DETERMINISTIC)

    assert core.statistics().compute.is_deterministic


def test_kernels_that_look_at_their_neighbours_are_found_out(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LayersLibrary.run

    def run(library: LayersLibrary, call: LayersCall) -> None:
        call.epsilon *= 1 + call_tokens.pop()
        real(library, call)

    # As of a sum that is taken in another order when there are more rows.
    call_tokens = [0.0, 0.0, 0.0, 0.5]
    monkeypatch.setattr(LayersLibrary, "run", run)

    with pytest.raises(EngineError, match="other bits beside others than alone") as caught:
        load_core(model_dir, vocab_size=120, config=DETERMINISTIC)

    assert "EN234" == caught.value.code


def test_where_torch_computes_some_steps_nothing_is_claimed(model_dir: Path) -> None:
    decoder = load_decoder(model_dir, dtype=torch.float32, kernels="measured")

    assert not has_same_bits(decoder)  # small matrices are torch's
