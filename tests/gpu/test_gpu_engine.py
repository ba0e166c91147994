"""The engine on a GPU: kernels, graphs, host memory and several cards. Skipped where there is none.

What these things decide is tested on CPUs; here is what only hardware can show.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import gguf
import pytest
from core_client import Client, output
from history_model import Updates
from quantized_models import converted
from random_models import tiny_llama

from flowforge.engine.computing import load_parts, load_whole, plan_compute
from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore
from flowforge.engine.devices import find_cuda_devices
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.loading import load_core
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.runner import ModelRunner
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.sequence import GenerationFinished, GenerationRequest, TokensArrived

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.computing import Computing

pytestmark = pytest.mark.gpu
# float32 in another order; products in full float32.
LOGPROB_TOLERANCE = 1e-3
# Numbers that rounding to float8 puts next to each other on the two.
ROUNDED_TOLERANCE = 0.05
PROMPTS = [[first, *range(20, 60)] for first in (3, 4, 5)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_llama(num_attention_heads=4, num_key_value_heads=2, head_dim=32).save_pretrained(directory)
    return directory


def answers(core: EngineCore) -> tuple[list[list[int]], list[float]]:
    """All prompts at once, and a fork of the first in the middle of its answer."""
    client = Client(core)
    sequences = [client.open(prompt) for prompt in PROMPTS]
    updates: list[Updates] = []
    for sequence in sequences:
        updates.append(Updates())
        params = SamplingParams(max_tokens=9, num_logprobs=0)
        core.generate(sequence, GenerationRequest(params), updates[-1])
    client.run()
    assert all(isinstance(each[-1], GenerationFinished) for each in updates)
    arrived = [[one for one in each if isinstance(one, TokensArrived)] for each in updates]
    ids = [[token for one in each for token in one.token_ids] for each in arrived]
    return ids, [entry.logprob for each in arrived for one in each for entry in one.logprobs]


def loaded(model_dir: Path, **settings: object) -> EngineCore:
    config = EngineConfig(num_pages=64, dtype="float32", **settings)  # type: ignore[arg-type]  # of tests
    return load_core(model_dir, vocab_size=120, config=config)


def test_a_gpu_answers_as_the_cpu_does(model_dir: Path) -> None:
    expected_ids, expected = answers(loaded(model_dir, device="cpu"))

    found_ids, found = answers(loaded(model_dir, device="cuda"))

    assert expected_ids == found_ids
    assert expected == pytest.approx(found, abs=LOGPROB_TOLERANCE)


def test_decode_steps_come_from_graphs_and_answer_as_without(model_dir: Path) -> None:
    config = EngineConfig(num_pages=64, dtype="float32", device="cuda", max_running=8)
    made = load_whole(plan_compute(model_dir, config), config)
    graphs = vars(made.forward)["_graphs"]
    assert graphs is not None
    with_graphs = answers(core_of(made, 8))
    assert graphs.num_rows_read > 0, "no step came from a graph"

    vars(made.forward)["_graphs"] = None
    without = answers(core_of(made, 8))

    assert without[0] == with_graphs[0]
    assert without[1] == pytest.approx(with_graphs[1], abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("settings", [{}, {"graphs": "off"}], ids=["graphs", "no graphs"])
def test_steps_that_are_launched_ahead_answer_as_those_that_are_read_first(
    model_dir: Path, settings: dict[str, str]
) -> None:
    expected_ids, expected = answers(loaded(model_dir, device="cuda", overlap="off", **settings))
    core = loaded(model_dir, device="cuda", speculation="off", **settings)

    found_ids, found = answers(core)

    assert expected_ids == found_ids
    assert expected == pytest.approx(found, abs=LOGPROB_TOLERANCE)
    assert core.statistics().steps.num_ahead > 0


def test_sampled_tokens_are_those_of_the_cpu(model_dir: Path) -> None:
    params = SamplingParams(
        max_tokens=9, temperature=0.9, top_k=20, top_p=0.95, frequency_penalty=0.3, seed=7
    )

    assert written(loaded(model_dir, device="cpu"), params) == written(
        loaded(model_dir, device="cuda"), params
    )


def written(core: EngineCore, params: SamplingParams) -> list[list[int]]:
    client, updates = Client(core), [Updates() for _ in PROMPTS]
    for prompt, each in zip(PROMPTS, updates, strict=True):
        core.generate(client.open(prompt), GenerationRequest(params), each)
    client.run()
    return [output(each) for each in updates]


def core_of(made: Computing, max_running: int) -> EngineCore:
    num_pages = made.store.rows.shape[3] // made.store.page_size
    return EngineCore(
        ModelRunner(made.forward, drawn=made.drawn),
        KvCache(num_pages, made.store.page_size),
        SchedulerLimits(64, max_running),
        ModelLimits(120, 128, frozenset()),
        clock=lambda: 0.0,
    )


def test_pages_come_back_from_pinned_memory_bit_by_bit(model_dir: Path) -> None:
    """Debug mode compares checksums; the pool holds one prompt and the host all."""
    expected = answers(loaded(model_dir, device="cuda"))
    config = EngineConfig(
        num_pages=5, dtype="float32", device="cuda", host_cache_bytes=1 << 20, is_debug=True
    )
    core = load_core(model_dir, vocab_size=120, config=config)

    assert expected[0] == answers(core)[0]
    assert expected[0] == answers(core)[0]
    assert core.statistics().kv.host.restored_pages > 0


def test_float8_rows_are_the_cpu_s_and_few_bits_answer_on_a_gpu(
    model_dir: Path, tmp_path: Path
) -> None:
    _, expected = answers(loaded(model_dir, device="cpu", kv_dtype="float8"))

    core = loaded(model_dir, device="cuda", kv_dtype="float8")

    # The first tokens: behind them another one may be the likeliest.
    assert expected[0] == pytest.approx(answers(core)[1][0], abs=ROUNDED_TOLERANCE)
    assert "float8" == core.statistics().compute.kv_dtype
    quantized = converted(tmp_path, {"weight": gguf.GGMLQuantizationType.Q4_1})
    for dtype in ("int4", "float8"):
        config = EngineConfig(num_pages=8, device="cuda", dtype=dtype)
        core = load_core(quantized, vocab_size=32, config=config)
        client = Client(core)
        updates = client.request([*range(3, 20)], 9)
        client.run()
        assert isinstance(updates[-1], GenerationFinished)
        compute = core.statistics().compute
        assert "bfloat16" == compute.dtype
        assert {dtype} == {kernel.kind for kernel in compute.kernels}


def test_two_gpus_answer_as_one(model_dir: Path) -> None:
    if len(find_cuda_devices().devices) < 2:
        pytest.skip("one GPU only: a split over NCCL needs two")
    expected = answers(loaded(model_dir, device="cuda:0"))
    config = EngineConfig(num_pages=64, dtype="float32", device="cuda", tp=2)

    with ExitStack() as end:
        found = answers(core_of(load_parts(plan_compute(model_dir, config), config, end), 8))

    assert expected[0] == found[0]
    assert expected[1] == pytest.approx(found[1], abs=LOGPROB_TOLERANCE)
