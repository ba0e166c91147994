"""Which devices the GPU kernels are for: told from what torch says of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from flowforge.engine.kernels import presence
from flowforge.engine.kernels.operators import KernelOperators
from flowforge.engine.models.operators import TorchOperators, operators_for

if TYPE_CHECKING:
    from collections.abc import Generator

DEVICE = torch.device("cuda:3")


@pytest.fixture(autouse=True)
def asked_anew() -> Generator[None]:
    presence.has_kernels.cache_clear()
    yield
    presence.has_kernels.cache_clear()


def with_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    def told(device: torch.device) -> tuple[int, int]:
        assert device == DEVICE
        return capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", told)


def test_the_cpu_has_torch() -> None:
    assert isinstance(operators_for(torch.device("cpu")), TorchOperators)


def test_a_gpu_of_a_known_kind_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with_capability(monkeypatch, (9, 0))

    assert isinstance(operators_for(DEVICE), KernelOperators)


def test_an_old_gpu_has_torch_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_capability(monkeypatch, (7, 5))

    assert isinstance(operators_for(DEVICE), TorchOperators)
    assert not presence.has_kernels(DEVICE)
    expected = "the GPU kernels need compute capability 8.0, cuda:3 has 7.5: torch computes instead"
    assert [expected] == [record.getMessage() for record in caplog.records]


def test_without_triton_there_is_torch_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_capability(monkeypatch, (9, 0))
    monkeypatch.setitem(sys.modules, "triton", None)

    assert not presence.has_kernels(DEVICE)
    assert "the GPU kernels need triton" == caplog.records[0].getMessage()[:27]
