"""Which devices the GPU kernels are for: told from what torch says of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from flowforge.engine.kernels import checks, presence
from flowforge.engine.kernels.checks import KernelCheck
from flowforge.engine.kernels.operators import KernelOperators
from flowforge.engine.models.operators import TorchOperators, operators_for

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

DEVICE = torch.device("cuda:3")
SLOWER = "torch computes instead, more slowly"


@pytest.fixture(autouse=True)
def asked_anew() -> Generator[None]:
    for has_any in (presence.has_kernels, presence.has_float8_kernels):
        has_any.cache_clear()
    yield
    for has_any in (presence.has_kernels, presence.has_float8_kernels):
        has_any.cache_clear()


def with_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    def told(device: torch.device) -> tuple[int, int]:
        assert device == DEVICE
        return capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", told)


def test_the_cpu_has_torch() -> None:
    assert isinstance(operators_for(torch.device("cpu")), TorchOperators)


def with_checks(monkeypatch: pytest.MonkeyPatch, *errors: float | Exception) -> None:
    """The kernels are tried, and come to this."""

    def check(device: str) -> Iterator[KernelCheck]:
        assert device == str(DEVICE)
        for error in errors:
            if isinstance(error, Exception):
                raise error
            yield KernelCheck("store", error, 0.01)

    monkeypatch.setattr(checks, "check_kernels", check)


def test_a_gpu_of_a_known_kind_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with_capability(monkeypatch, (9, 0))
    with_checks(monkeypatch, 0.001)

    assert isinstance(operators_for(DEVICE), KernelOperators)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (0.5, "GPU kernels compute wrong results (store): not used"),
        (float("nan"), "GPU kernels compute wrong results (store): not used"),
        (
            RuntimeError("no ptxas\nmore"),
            "the GPU kernels do not run here, torch computes instead: RuntimeError: no ptxas",
        ),
    ],
)
def test_kernels_that_do_not_work_are_left_to_torch_everywhere(
    outcome: float | Exception,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_capability(monkeypatch, (9, 0))
    with_checks(monkeypatch, 0.001, outcome)

    assert isinstance(operators_for(DEVICE), TorchOperators)
    assert not presence.has_kernels(DEVICE)
    assert [told] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("capability", "error", "told"),
    [
        ((8, 9), 0.001, []),
        ((8, 9), 0.5, ["GPU kernels compute wrong results (store): not used"]),
        (
            (8, 6),
            0.001,
            ["kernels for float8 need compute capability 8.9, cuda:3 has 8.6: " + SLOWER],
        ),
    ],
)
def test_a_gpu_without_float8_has_all_other_kernels(
    capability: tuple[int, int],
    error: float,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_capability(monkeypatch, capability)
    with_checks(monkeypatch, 0.001)

    def check_float8(device: str) -> Iterator[KernelCheck]:
        yield KernelCheck("store", error, 0.01)

    monkeypatch.setattr(checks, "check_float8_kernels", check_float8)

    assert presence.has_kernels(DEVICE)
    assert (told == []) == presence.has_float8_kernels(DEVICE)
    assert told == [record.getMessage() for record in caplog.records]


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
