"""Products from weights that were laid out once; in float32, which every CPU can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from random_models import random_model

from flowforge.engine.models import prepacked
from flowforge.engine.models.kernel_choice import choose_kernels
from flowforge.engine.models.linears import ChosenLinear, LinearMaker, find_kernels
from flowforge.engine.models.prepacked import PrepackedKernels, PrepackedLinear, can_prepack
from flowforge.engine.models.weight_size import weight_size
from flowforge.engine.processor import Processor

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forgets() -> None:
    can_prepack.cache_clear()


def yes(dtype: torch.dtype) -> bool:
    return True


def no(dtype: torch.dtype) -> bool:
    return False


def narrow(linear: PrepackedLinear, x: torch.Tensor) -> torch.Tensor:
    return x[:, :32]


@pytest.mark.parametrize("num_rows", [1, 5, 64])
@torch.inference_mode()
def test_products_are_torchs(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn((70, 96), generator=generator), torch.randn(70, generator=generator)
    x = torch.randn((num_rows, 96), generator=generator)

    for one in (bias, None):
        torch.testing.assert_close(F.linear(x, weight, one), PrepackedLinear(weight, one)(x))


def test_the_choice_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepacked, "store_root", lambda: tmp_path)
    maker = LinearMaker("measured", PrepackedKernels())
    linear = maker.make(torch.ones((1024, 64)), None)
    assert isinstance(linear, ChosenLinear)

    choose_kernels(maker)

    (path,) = (tmp_path / "native").glob("prepacked-*.json")
    assert "bfloat16 1024x64" in path.read_text(encoding="utf-8")
    assert torch.equal(torch.full((2, 1024), 64.0), linear(torch.ones((2, 64))))


def test_bfloat16_is_prepacked_where_the_processor_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_model("Llama", hidden_size=64).bfloat16().save_pretrained(tmp_path)
    processor = Processor("new", frozenset({"avx512_bf16"}))
    monkeypatch.setattr("flowforge.engine.models.weight_size.find_processor", lambda: processor)
    monkeypatch.setattr("flowforge.engine.models.weight_size.can_prepack", no)
    before = weight_size(tmp_path).num_bytes
    monkeypatch.setattr("flowforge.engine.models.weight_size.can_prepack", yes)
    monkeypatch.setattr(prepacked, "can_prepack", yes)

    assert 2 * before == weight_size(tmp_path).num_bytes
    assert isinstance(find_kernels(CPU, "measured", torch.bfloat16), PrepackedKernels)


def test_what_onednn_cannot_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PrepackedLinear, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise RuntimeError("bf16 path needs the cpu support")

    monkeypatch.setattr(PrepackedLinear, "__init__", refuse)

    assert not can_prepack(torch.bfloat16)
    assert find_kernels(CPU, "measured", torch.bfloat16) is None


def test_what_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrepackedLinear, "__call__", narrow)

    assert not can_prepack(torch.float32)
