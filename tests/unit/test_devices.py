"""Which device an engine computes on, told from what machines say that they have."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from random_models import tiny_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.devices import (
    ChosenDevice,
    CudaDevice,
    CudaFinding,
    choose_device,
    find_cuda_devices,
)
from flowforge.engine.loading import load_core
from flowforge.engine.memory import HOST_RULE, plan_pages
from flowforge.engine.models.weight_size import weight_size
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
SMALL = CudaDevice(0, "L4", (8, 9), 20 * GIB, 24 * GIB)
LARGE = CudaDevice(1, "H200", (9, 0), 130 * GIB, 140 * GIB)
OLD = CudaDevice(0, "V100", (7, 0), 15 * GIB, 16 * GIB)
TWO = CudaFinding((SMALL, LARGE))
NONE = CudaFinding((), "torch is built without CUDA")


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "", 3])
def test_a_device_that_is_no_name_of_one_is_refused(asked: str) -> None:
    with pytest.raises(EngineError, match="device must be auto, cpu, cuda or cuda:N") as caught:
        EngineConfig(device=asked)

    assert "EN230" == caught.value.code


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_the_gpu_with_the_most_free_memory_is_taken(asked: str) -> None:
    assert "cuda:1" == choose_device(asked, TWO).name
    fuller = replace(LARGE, free_bytes=GIB)
    assert "cuda:0" == choose_device(asked, CudaFinding((SMALL, fuller))).name


def test_of_gpus_that_are_equally_free_the_first_is_taken() -> None:
    other = replace(SMALL, index=1)

    assert "cuda:0" == choose_device("auto", CudaFinding((SMALL, other))).name


def test_a_named_gpu_is_taken() -> None:
    assert "cuda:0" == choose_device("cuda:0", TWO).name


def test_without_a_gpu_auto_is_the_cpu() -> None:
    chosen = choose_device("auto", NONE, host_bytes=77)

    assert ChosenDevice("cpu", None, 77, HOST_RULE) == chosen


def test_the_cpu_can_be_asked_for_beside_a_gpu() -> None:
    assert not choose_device("cpu", TWO, host_bytes=1).is_cuda


@pytest.mark.parametrize("asked", ["cuda", "cuda:0"])
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(asked: str) -> None:
    with pytest.raises(EngineError, match="torch is built without CUDA") as caught:
        choose_device(asked, NONE)

    assert "EN235" == caught.value.code


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(EngineError, match=r"cuda:0 \(L4\), cuda:1 \(H200\)") as caught:
        choose_device("cuda:7", TWO)

    assert "EN235" == caught.value.code


def test_an_old_gpu_is_used_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = choose_device("cuda", CudaFinding((OLD,)))

    assert "cuda:0" == chosen.name
    assert "V100 has compute capability 7.0, and the engine's kernels need 8.0" in caplog.text


def test_the_pool_takes_what_weights_and_the_stated_margin_leave_of_a_gpu() -> None:
    chosen = choose_device("cuda:1", TWO)
    page = 2 * GIB // 1000
    weights = 16 * GIB

    pages = plan_pages(
        EngineConfig(max_running=4096),
        context_len=100_000,
        page_bytes=page,
        weight_bytes=weights,
        available_bytes=chosen.available_bytes,
        rule=chosen.rule,
    )

    margin = GIB + 140 * GIB // 20
    assert (130 * GIB - weights - margin) // page == pages


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_llama().to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("device", "dtype"), [(LARGE, torch.bfloat16), (OLD, torch.float32)])
def test_auto_takes_bfloat16_where_the_gpu_has_it(
    model_dir: Path, device: CudaDevice, dtype: torch.dtype
) -> None:
    size = weight_size(model_dir, device=choose_device("cuda", CudaFinding((device,))))

    assert dtype == size.dtype


def test_what_only_the_cpu_computes_is_refused_on_a_gpu(model_dir: Path) -> None:
    chosen = choose_device("cuda", TWO)
    with pytest.raises(EngineError, match="kernels of the CPU") as caught:
        weight_size(model_dir, is_deterministic=True, device=chosen)
    assert "EN234" == caught.value.code


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_says_so_and_the_engine_computes_on_the_cpu(model_dir: Path) -> None:
    found = find_cuda_devices()
    assert () == found.devices
    assert f"torch {torch.__version__} is built without CUDA" == found.why_none

    with pytest.raises(EngineError, match="built without CUDA"):
        load_core(model_dir, vocab_size=120, config=EngineConfig(device="cuda"))
    core = load_core(model_dir, vocab_size=120, config=EngineConfig(device="auto"))

    assert "cpu" == core.statistics().compute.device
