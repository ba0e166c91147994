"""Decode steps from captured graphs: sizes, dummies, fixed places; by a capture that records calls.

What a graph does on a GPU is in tests/gpu; here kernels run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import torch
from core_client import Client
from history_model import Updates
from hypothesis import given
from hypothesis import strategies as st
from random_models import tiny_model

from flowforge.engine.attention.backends import choose_backend
from flowforge.engine.attention.graph_attention import GraphTables
from flowforge.engine.attention.kernel_attention import kernel_backend
from flowforge.engine.core import EngineCore
from flowforge.engine.device_step import DrawnTokens
from flowforge.engine.forward import ForwardPass
from flowforge.engine.graphs import DecodeGraphs, graph_sizes, size_for
from flowforge.engine.kernels.dialect import IS_INTERPRETED
from flowforge.engine.kv.audit import KvAudit
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.store import KvStore
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.row_sampler import KernelSampler
from flowforge.engine.runner import ModelRunner
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.sequence import GenerationRequest, TokensArrived

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.engine.graphs import Replay
    from flowforge.engine.models.decoder import Decoder

PAGE_SIZE = 4
MOST_CONTEXT = 64
TOLERANCE = 1e-4


def test_sizes_double_and_then_step() -> None:
    assert (1,) == graph_sizes(1)
    assert (1, 2, 3) == graph_sizes(3)
    assert (1, 2, 4, 8, 16, 32, 64, 96, 128) == graph_sizes(128)
    assert 256 == graph_sizes(1000)[-1]


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_step_takes_the_least_size_that_holds_it(max_running: int, num_rows: int) -> None:
    sizes = graph_sizes(max_running)
    found = size_for(num_rows, sizes)

    assert sizes == tuple(sorted(set(sizes)))
    if found is None:
        assert num_rows > sizes[-1]
    else:
        assert num_rows <= found
        assert all(size < num_rows for size in sizes if size < found)


@dataclass
class FakeCapture:
    """Runs a function once and then again at each replay, into the same place."""

    replays: list[int] = field(default_factory=list[int])

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        found = compute()

        def replay() -> None:
            self.replays.append(found.shape[0])
            found.copy_(compute())

        return found, replay


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Layers of two kinds: one with a window, one without."""
    directory: Path = tmp_path_factory.mktemp("windowed")
    model = tiny_model("Qwen2", sliding_window=9, use_sliding_window=True, max_window_layers=1)
    model.save_pretrained(directory)
    return load_decoder(directory, dtype=torch.float32)


def core_on(decoder: Decoder, capture: FakeCapture | None, *, overlaps: bool = False) -> EngineCore:
    """In debug mode: every row that is read is checked, and free pages hold NaN.

    overlaps: tokens are drawn by the kernels, and steps launched before the last one is read.
    """
    config = decoder.config
    store = KvStore(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_pages=48,
        page_size=PAGE_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    audit = KvAudit(48, PAGE_SIZE, store.poison)
    kv = KvCache(48, PAGE_SIZE, audit.note_freed)
    backend = kernel_backend(store, config.num_heads, "on")
    windows = tuple({layer.window: None for layer in config.layers})
    drawn = DrawnTokens(KernelSampler(), 40, torch.device("cpu")) if overlaps else None
    ids = None if drawn is None else drawn.ids
    graphs = None
    if capture is not None:
        graphs = DecodeGraphs(
            decoder,
            lambda size: GraphTables(backend, size, MOST_CONTEXT, windows),
            (1, 2, 4),
            capture,
            drawn=ids,
        )
    attention = choose_backend(store) if capture is None else backend
    return EngineCore(
        ModelRunner(ForwardPass(decoder, store, attention, graphs, ids), audit, kv.is_free, drawn),
        kv,
        SchedulerLimits(32, 8),
        ModelLimits(120, 128, frozenset()),
        clock=lambda: 0.0,
        overlaps=overlaps,
    )


def answers(core: EngineCore) -> tuple[list[list[int]], list[float]]:
    """Of forks that share a prefix, end at different times, and of one more than a graph holds."""
    client = Client(core)
    prompt = client.open([*range(5, 16)])
    updates: list[Updates] = []

    def begin(sequence: int, max_tokens: int) -> None:
        updates.append(Updates())
        params = SamplingParams(max_tokens=max_tokens, num_logprobs=0)
        core.generate(sequence, GenerationRequest(params), updates[-1])  # type: ignore[arg-type]  # of the client

    core.prefill(prompt, Updates())
    client.run()
    for max_tokens in (2, 4, 7):
        fork = client.fork(prompt)
        core.append(fork, [40 + max_tokens])
        begin(fork, max_tokens)
    begin(client.open([7, 8, 9]), 3)
    begin(client.open([9, 8]), 2)
    client.run()
    arrived = [[one for one in each if isinstance(one, TokensArrived)] for each in updates]
    ids = [[token for one in each for token in one.token_ids] for each in arrived]
    return ids, [entry.logprob for each in arrived for one in each for entry in one.logprobs]


@pytest.mark.skipif(not IS_INTERPRETED, reason="kernels run on the GPU of this machine")
@torch.inference_mode()
def test_a_graph_s_answers_are_those_of_torch(windowed: Decoder) -> None:
    capture = FakeCapture()
    expected_ids, expected = answers(core_on(windowed, None))

    found_ids, found = answers(core_on(windowed, capture))

    assert expected_ids == found_ids
    assert expected == pytest.approx(found, abs=TOLERANCE)
    # Five rows are more than a graph holds; three and four fill one of four.
    assert {1, 2, 4} == set(capture.replays)


@pytest.mark.skipif(not IS_INTERPRETED, reason="kernels run on the GPU of this machine")
@torch.inference_mode()
def test_a_graph_reads_the_tokens_that_the_last_step_drew(windowed: Decoder) -> None:
    capture = FakeCapture()
    expected_ids, expected = answers(core_on(windowed, None))
    core = core_on(windowed, capture, overlaps=True)

    found_ids, found = answers(core)

    assert expected_ids == found_ids
    assert expected == pytest.approx(found, abs=TOLERANCE)
    assert {1, 2, 4} == set(capture.replays)
    # All but the first steps: of the prompt, and of the branches behind it.
    assert core.statistics().num_steps - 2 == core.statistics().steps.num_ahead


@pytest.mark.skipif(not IS_INTERPRETED, reason="kernels run on the GPU of this machine")
@torch.inference_mode()
def test_progress_is_told_and_the_largest_is_captured_first(windowed: Decoder) -> None:
    config = windowed.config
    store = KvStore(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_pages=4,
        page_size=PAGE_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    store.rows.fill_(5.0)
    backend = kernel_backend(store, config.num_heads)
    told: list[tuple[int, int]] = []
    sizes: list[int] = []

    def capture(compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        found = compute()
        sizes.append(found.shape[0])
        return found, lambda: None

    windows = tuple({layer.window: None for layer in config.layers})
    DecodeGraphs(
        windowed,
        lambda size: GraphTables(backend, size, MOST_CONTEXT, windows),
        (1, 2, 4),
        capture,
        lambda done, total: told.append((done, total)),
    )

    assert [4, 2, 1] == sizes
    assert [(0, 3), (1, 3), (2, 3), (3, 3)] == told
    assert (store.rows == 5.0).all(), "a dummy wrote a KV row"
