"""An engine starts, crashes and ends without a trace: memory, threads, processes, signals, sockets.

The model is a small random one, so that weights and KV pages are real tensors.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - notebooks run it
import gc
import os
import signal
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from history_model import history_core, right_output
from random_models import tiny_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore
from flowforge.engine.engine import Engine
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.store import KvStore
from flowforge.engine.loading import engine_for
from flowforge.engine.models.decoder import Decoder, DecoderWeights
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.scheduler import Scheduler
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.errors import EngineError, FlowForgeError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    import torch

    from flowforge.engine.handle import EngineSequence

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
VOCAB_SIZE = 120


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(directory)
    return directory


def engine(model_dir: Path, num_pages: int = 16) -> Engine:
    config = EngineConfig(num_pages=num_pages, page_size=4, num_threads=1)
    return engine_for(model_dir, vocab_size=VOCAB_SIZE, config=config)


async def output(sequence: EngineSequence, request: GenerationRequest | None = None) -> list[int]:
    default = GenerationRequest(SamplingParams(max_tokens=4, ignore_eos=True))
    tokens: list[int] = []
    async for update in sequence.generate(request or default):
        if isinstance(update, TokensArrived):
            tokens += update.token_ids
    return tokens


class Made:
    """Weak references to the tensors and objects of every engine that is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.references: list[Callable[[], object]] = []
        self.rows: list[weakref.ref[torch.Tensor]] = []
        for kind in (Decoder, KvStore, EngineCore):
            self._note(kind, monkeypatch)

    def _note(self, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        real: Callable[..., None] = vars(kind)["__init__"]

        def init(made: object, *args: object, **kwargs: object) -> None:
            real(made, *args, **kwargs)
            self.references.append(weakref.ref(made))
            if isinstance(made, Decoder):
                weights = args[1]
                assert isinstance(weights, DecoderWeights)
                self.references.append(weakref.ref(weights.embedding))
            if isinstance(made, KvStore):
                self.rows.append(weakref.ref(made.rows))
                self.references.append(self.rows[-1])

        monkeypatch.setattr(kind, "__init__", init)

    def alive(self) -> list[str]:
        found = [reference() for reference in self.references]
        return [type(one).__name__ for one in found if one is not None]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


async def test_weights_and_pages_are_freed_at_exit_twice_in_one_process(
    model_dir: Path, made: Made
) -> None:
    gc.collect()
    gc.disable()  # freed when left, not when a collector happens to run
    try:
        for _ in range(2):
            async with engine(model_dir) as running:
                sequence = running.open(PROMPT)
                await output(sequence)
                await running.save("prompt", sequence)
                assert made.alive()
            assert [] == made.alive()
    finally:
        gc.enable()


async def test_resident_memory_falls_back_at_exit(model_dir: Path, made: Made) -> None:
    """64 MiB of pages, all written to."""
    async with engine(model_dir) as running:
        await output(running.open(PROMPT))
    before = resident_bytes()
    num_pages = (64 << 20) // (2 * 2 * 1 * 16 * 4 * 4)

    async with engine(model_dir, num_pages=num_pages) as running:
        await running.settle()
        rows = made.rows[-1]()
        assert rows is not None
        rows.zero_()
        inside = resident_bytes()
        del rows

    assert inside - before > 60 << 20
    assert resident_bytes() - before < 8 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- crashes --------------------------------------------------------------------------------------


class BrokenConstraint:
    """A constraint that raises in one of its methods."""

    def __init__(self, broken: str) -> None:
        self._broken = broken

    @property
    def is_complete(self) -> bool:
        self._reach("is_complete")
        return False

    @property
    def is_accepting(self) -> bool:
        return False

    def limit_to(self, num_tokens: int) -> None:
        assert num_tokens > 0
        self._reach("limit_to")

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        self._reach("fill_mask")
        out[:] = 0xFFFFFFFF

    def advance(self, token_id: int) -> bool:
        assert token_id >= 0
        self._reach("advance")
        return True

    def forced_tokens(self) -> list[int]:
        self._reach("forced_tokens")
        return []

    def fork(self) -> BrokenConstraint:
        return BrokenConstraint(self._broken)

    def _reach(self, name: str) -> None:
        if name == self._broken:
            raise RuntimeError(f"broken in {name}")


class BrokenStop:
    def is_met_by(self, token_ids: list[int]) -> bool:
        assert token_ids
        raise RuntimeError("broken in is_met_by")


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("broken on purpose")


@pytest.mark.parametrize(
    "broken", ["fill_mask", "advance", "forced_tokens", "is_complete", "limit_to", "is_met_by"]
)
async def test_what_a_request_brings_fails_that_request_alone(
    broken: str, model_dir: Path, made: Made
) -> None:
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    if broken == "is_met_by":
        request = GenerationRequest(params, stop=BrokenStop())
    else:
        request = GenerationRequest(params, BrokenConstraint(broken))
    kept: list[BaseException] = []
    async with engine(model_dir) as running:
        expected = await output(running.open(PROMPT))
        beside = running.open([7, *PROMPT])
        beside_alone = await output(running.open([7, *PROMPT]))
        sequence = running.open(PROMPT)
        found: list[int] = []

        async def go_on() -> None:
            found.extend(await output(beside))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            with pytest.raises(FlowForgeError, match=f"RuntimeError: broken in {broken}") as caught:
                await output(sequence, request)
            kept.append(caught.value)
            del caught

        assert isinstance(kept[0].__cause__, RuntimeError)
        assert beside_alone == found
        assert expected == await output(running.open(PROMPT))
        await running.check_invariants()
    gc.collect()
    assert [] == made.alive(), "the error that was kept holds the engine's memory"


@pytest.mark.parametrize("where", ["forward", "logits"])
async def test_a_failed_forward_pass_leaves_a_usable_engine(
    where: str, model_dir: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[BaseException] = []
    async with engine(model_dir) as running:
        expected = await output(running.open(PROMPT))
        sequence = running.open([*PROMPT, 8, 8])
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, where, fail)
            with pytest.raises(EngineError, match="RuntimeError: broken on purpose") as caught:
                await output(sequence)
            kept.append(caught.value)
            del caught

        assert "EN220" == getattr(kept[0], "code", None)
        cause = kept[0].__cause__
        assert isinstance(cause, RuntimeError)
        assert "in fail" in cause.__notes__[0], "the note says where"
        assert expected == await output(running.open(PROMPT))
        assert 4 == len(await output(sequence))
        await running.check_invariants()
        assert 1 == (await running.settle()).requests.failed
    gc.collect()
    assert [] == made.alive(), "the error that was kept holds the engine's memory"


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (Scheduler, "plan_step"),
        (Scheduler, "committed"),
        (KvCache, "commit"),
        (KvCache, "reserve"),
        (EngineCore, "statistics"),
    ],
)
async def test_a_defect_in_the_bookkeeping_closes_the_engine_and_hangs_nobody(
    owner: type, method: str, model_dir: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[BaseException] = []

    async def read(sequence: EngineSequence) -> None:
        with pytest.raises(InternalError, match="RuntimeError: broken on purpose") as caught:
            await output(sequence)
        kept.append(caught.value)

    async with engine(model_dir) as running:
        sequences = [running.open([number, *PROMPT]) for number in range(1, 4)]
        idle = running.open(PROMPT)
        await running.settle()
        with monkeypatch.context() as patch:
            # Pages that cannot be given back must not keep anyone waiting either.
            patch.setattr(owner, method, fail)
            patch.setattr(KvCache, "release", fail)
            async with anyio.create_task_group() as tasks:
                for sequence in sequences:
                    tasks.start_soon(read, sequence)

            with pytest.raises(InternalError, match="IN201"):
                running.open(PROMPT)
            with pytest.raises(InternalError, match="IN201"):
                await idle.fork()
            await idle.close()

    assert 3 == len(kept)
    gc.collect()
    assert [] == made.alive(), "the errors that were kept hold the engine's memory"


async def test_a_defect_that_shows_when_the_engine_is_left_is_raised_there(
    model_dir: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = engine(model_dir)
    await running.__aenter__()
    await output(running.open(PROMPT))
    with monkeypatch.context() as patch:
        patch.setattr(KvCache, "release", fail)
        with pytest.raises(InternalError, match="RuntimeError: broken on purpose"):
            await running.__aexit__(None, None, None)
    gc.collect()

    assert [] == made.alive()


async def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(
    model_dir: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineCore, "__init__", fail)

    with pytest.raises(RuntimeError, match="broken on purpose") as caught:
        async with engine(model_dir):
            pass

    assert caught.value.__traceback__ is not None
    gc.collect()
    assert [] == made.alive()


# -- what a process sees of an engine -------------------------------------------------------------


async def test_an_engine_changes_nothing_of_its_process(model_dir: Path) -> None:
    async with engine(model_dir) as running:  # what is imported once stays imported
        await output(running.open(PROMPT))
    before = process_state()

    async with engine(model_dir) as running:
        await output(running.open(PROMPT))
        inside = process_state()
    after = process_state()

    assert before == after
    assert [*before["threads"], "flowforge-engine"] == inside["threads"]
    for unchanged in ("signals", "children", "sockets", "environment"):
        assert before[unchanged] == inside[unchanged]


async def test_the_last_of_engines_that_overlap_puts_the_threads_back(model_dir: Path) -> None:
    """The number that threads of the process begin with, not only that of one of them."""
    import torch

    def number_in_a_new_thread() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return found[0]

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        first, second = engine(model_dir), engine(model_dir)
        await first.__aenter__()
        await second.__aenter__()
        assert 1 == number_in_a_new_thread()
        await first.__aexit__(None, None, None)
        assert 1 == number_in_a_new_thread(), "the second still computes"
        await second.__aexit__(None, None, None)

        assert 3 == number_in_a_new_thread()
    finally:
        torch.set_num_threads(before)


async def test_a_model_directory_may_be_given_as_text(model_dir: Path) -> None:
    config = EngineConfig(num_pages=16, page_size=4, num_threads=1)
    async with engine_for(str(model_dir), vocab_size=VOCAB_SIZE, config=config) as running:
        assert 4 == len(await output(running.open(PROMPT)))


@pytest.mark.parametrize("vocab_size", [0, -1, 2.5, None, "a"])
def test_a_vocabulary_without_ids_is_refused(model_dir: Path, vocab_size: Any) -> None:
    with pytest.raises(EngineError, match=r"EN230.*vocab_size must be "):
        engine_for(model_dir, vocab_size=vocab_size)


def process_state() -> dict[str, list[str]]:
    import torch

    descriptors: list[str] = []
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists the folder
            descriptors.append(os.readlink(f"/proc/self/fd/{entry}"))
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return {
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "threads": [thread.name for thread in threading.enumerate()],
        "children": children.read_text().split() if children.exists() else [],
        "sockets": sorted(one for one in descriptors if one.startswith("socket:")),
        "environment": sorted(f"{name}={value}" for name, value in os.environ.items()),
        "torch": [str(torch.get_num_threads())],
    }


def test_an_engine_lives_over_the_cells_of_a_notebook(model_dir: Path) -> None:
    """A notebook's loop exists before and after, and runs each cell as a task of its own."""
    loop = asyncio.new_event_loop()
    names: dict[str, object] = {}

    async def first_cell() -> None:
        names["engine"] = await engine(model_dir).__aenter__()

    async def second_cell() -> None:
        running = names["engine"]
        assert isinstance(running, Engine)
        names["sequence"] = running.open(PROMPT)
        names["output"] = await output(running.open(PROMPT))

    async def interrupted_cell() -> None:
        running = names["engine"]
        assert isinstance(running, Engine)
        long = GenerationRequest(SamplingParams(max_tokens=50, ignore_eos=True))
        await output(running.open(PROMPT), long)

    async def last_cell() -> None:
        running = names["engine"]
        assert isinstance(running, Engine)
        names["again"] = await output(running.open(PROMPT))
        await running.__aexit__(None, None, None)

    try:
        loop.run_until_complete(first_cell())
        loop.run_until_complete(second_cell())
        cell = loop.create_task(interrupted_cell())
        loop.run_until_complete(asyncio.sleep(0))
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(cell)
        loop.run_until_complete(last_cell())
        loop.run_until_complete(loop.shutdown_asyncgens())
        assert names["output"] == names["again"]
        names_of_threads = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names_of_threads if "flowforge" in name or "AnyIO" in name]
    finally:
        loop.close()


async def test_an_aborted_generation_takes_part_in_no_further_step() -> None:
    core, runner, _ = history_core(num_pages=256)
    async with Engine(lambda: core) as running:
        sequence = running.open(PROMPT)
        updates = sequence.generate(
            GenerationRequest(SamplingParams(max_tokens=900, ignore_eos=True))
        )
        await anext(updates)
        await updates.aclose()
        await running.settle()
        num_plans = len(runner.plans)

        other = running.open([7, *PROMPT])
        await output(other)

        later = runner.plans[num_plans:]
        assert later
        assert all(len(plan.chunks) == 1 for plan in later)
        assert right_output([7, *PROMPT], 1)[0] == other.tokens[len(PROMPT) + 1]
