"""A model over two processes: the same logits and texts as in one, and no end that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from core_client import Client
from decoder_runs import paged_logits
from family_models import FAMILIES, family_model
from history_model import Updates
from second_rank import rank_logits

from flowforge.engine.computing import load_parts, load_whole, plan_compute
from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.paged_rows import RowsPlan
from flowforge.engine.parallel import rank_rows
from flowforge.engine.parallel.messages import PartTask
from flowforge.engine.parallel.split import Rank
from flowforge.engine.parallel.workers import Workers, new_meeting_folder
from flowforge.engine.prefix_rows import PrefixRows
from flowforge.engine.runner import ModelRunner
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.sequence import (
    GenerationFailed,
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.engine.computing import Computing

SUPPORT = Path(__file__).parent.parent / "support"
# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4
NUM_IDS, CHUNK_LEN = 37, 9


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directories = {name: tmp_path_factory.mktemp("model") for name in FAMILIES}
    for name, directory in directories.items():
        family_model(name).save_pretrained(directory)
    return directories


@pytest.fixture(scope="module")
def split_logits(
    model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, torch.Tensor]]:
    """Of all families, by one pair of processes: this one and another."""
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    directories = [*model_dirs.values()]
    numbers = (str(CHUNK_LEN), str(NUM_IDS))
    command = [sys.executable, SUPPORT / "second_rank.py", meeting, *numbers, *directories]
    with subprocess.Popen([str(word) for word in command]) as second:
        try:
            found = rank_logits(Rank(0, 2), meeting, directories, CHUNK_LEN, NUM_IDS)
            assert 0 == second.wait(60)
        finally:
            second.kill()
    yield dict(zip(model_dirs, found, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_two_processes_compute_what_one_does(
    name: str, model_dirs: dict[str, Path], split_logits: dict[str, torch.Tensor]
) -> None:
    decoder = load_decoder(model_dirs[name], dtype=torch.float32)

    expected = paged_logits(decoder, torch.arange(3, 3 + NUM_IDS), CHUNK_LEN)

    assert (expected - split_logits[name]).abs().max().item() < TOLERANCE


@pytest.fixture
def end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def core_of(made: Computing) -> EngineCore:
    num_pages = made.store.rows.shape[3] // made.store.page_size
    kv = KvCache(num_pages, made.store.page_size)
    return EngineCore(
        ModelRunner(made.forward),
        kv,
        SchedulerLimits(16, 8),
        ModelLimits(120, 128, frozenset()),
        clock=lambda: 0.0,
        prefix_rows=PrefixRows(kv, made.rows),
    )


def texts(core: EngineCore) -> list[list[int]]:
    """Of a prompt, a fork in the middle of its answer, and a scored text."""
    client = Client(core)
    parent = client.open([*range(5, 28)])
    updates = [client.start(parent, 9)]
    core.step()
    core.step()
    core.step()
    fork = client.fork(parent)
    client.run()
    updates.append(client.start(fork, 6))
    scored = Updates()
    core.score(client.open([3, 4, 5]), [6, 7, 8, 9], scored)
    client.run()
    last = scored[-1]
    assert isinstance(last, GenerationFinished)
    ids = [
        [token for update in one if isinstance(update, TokensArrived) for token in update.token_ids]
        for one in updates
    ]
    return [*ids, [round(1000 * one.logprob) for one in last.scored]]


def test_an_engine_over_two_processes_writes_what_one_does_and_its_death_is_told(
    model_dirs: dict[str, Path], end: ExitStack, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = model_dirs["qwen3"]
    config = EngineConfig(device="cpu", num_pages=32, tp=2, dtype="float32")
    whole = EngineConfig(device="cpu", num_pages=32, dtype="float32")
    expected = texts(core_of(load_whole(plan_compute(directory, whole), whole)))
    core = core_of(load_parts(plan_compute(directory, config), config, end))

    assert expected == texts(core)

    (worker,) = rank_processes()
    client = Client(core)
    waiting = [client.request([7, 8, 9], 50), client.request([*range(40)], 50)]
    core.step()
    os.kill(worker, signal.SIGKILL)
    client.run()
    waiting.append(client.request([1, 2], 5))
    client.run()
    for updates in waiting:
        failed = updates[-1]
        assert isinstance(failed, GenerationFailed)
        assert isinstance(failed.error, EngineError)
        assert "EN237" == failed.error.code
        assert "the process of rank 1 ended by signal 9" == failed.error.message
    core.check_invariants()
    end.close()
    assert [] == rank_processes()
    assert "" == capfd.readouterr().err


def test_float8_rows_of_all_ranks_are_kept_and_hit_again(
    model_dirs: dict[str, Path], end: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_rows, "_MOST_SLOTS", 16)  # so that rows come in several pieces
    config = EngineConfig(device="cpu", num_pages=32, tp=2, dtype="float32", kv_dtype="float8")
    made = load_parts(plan_compute(model_dirs["qwen3"], config), config, end)
    core = core_of(made)
    client = Client(core)
    prompt = [*range(5, 44)]
    expected = answer(core, client.open(prompt))
    sequence = client.open(prompt)
    answer(core, sequence)
    prefix = core.take_out(sequence)
    assert prefix is not None
    assert prefix.scales is not None
    # The heads of both ranks.
    assert made.store.kind.num_kv_heads < prefix.rows.shape[2] == made.rows.kind.num_kv_heads
    before = core.statistics().prefilled_tokens
    # To another tenant nothing of it is known.
    theirs = replace(prefix, namespace=Namespace(salt="b"))

    assert len(prefix.tokens) == core.put_in(theirs)

    found = answer(core, client.open(prompt, Namespace(salt="b")))
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert 1 == core.statistics().prefilled_tokens - before
    core.check_invariants()


def answer(core: EngineCore, sequence: SequenceId) -> list[float]:
    updates = Updates()
    params = SamplingParams(max_tokens=4, num_logprobs=0)
    core.generate(sequence, GenerationRequest(params), updates)
    while core.has_work:
        core.step()
    assert isinstance(updates[-1], GenerationFinished)
    arrived = [update for update in updates if isinstance(update, TokensArrived)]
    return [entry.logprob for update in arrived for entry in update.logprobs]


def test_an_error_on_a_worker_is_told_with_its_reason_and_the_rank(
    model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    folder = new_meeting_folder()
    task = PartTask(
        directory=tmp_path / "none",
        context_len=None,
        rank=Rank(1, 2),
        device="cpu",
        rows=RowsPlan(num_pages=4, page_size=4, dtype=torch.float32),
        kernel_rows=None,
        meeting_file=Path(folder.name) / "meeting",
    )
    workers = Workers([task], 1, folder)

    with pytest.raises(EngineError, match="rank 1 of 2: no config") as caught:
        workers.meet()
    workers.close()
    workers.close()

    assert "EN110" == caught.value.code
    assert [] == rank_processes()
    assert not Path(folder.name).exists()


def test_what_one_process_only_can_do_is_refused(model_dirs: dict[str, Path]) -> None:
    directory = model_dirs["qwen3"]
    with pytest.raises(EngineError, match="is_deterministic is for one process") as caught:
        plan_compute(directory, EngineConfig(device="cpu", tp=2, is_deterministic=True))
    assert "EN234" == caught.value.code

    with pytest.raises(EngineError, match="overlap is for one process, and tp is 2") as caught:
        EngineConfig(device="cpu", tp=2, overlap="on")
    assert "EN230" == caught.value.code

    with pytest.raises(EngineError, match="tp of a core without an engine must be 1") as caught:
        load_core(directory, vocab_size=120, config=EngineConfig(device="cpu", tp=2))
    assert "EN230" == caught.value.code


def rank_processes() -> list[int]:
    """Processes that this one began as ranks and that have not ended."""
    children = [
        int(child)
        for file in Path("/proc/self/task").glob("*/children")
        for child in file.read_text(encoding="ascii").split()
    ]
    return [
        child
        for child in children
        if b"parallel.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
