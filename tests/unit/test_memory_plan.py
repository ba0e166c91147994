"""How many KV pages fit, and what is said when something does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.engine.config import EngineConfig
from flowforge.engine.memory import MARGIN_BYTES, free_memory, in_bytes, plan_pages
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 1_000_000
WEIGHTS = 500_000_000


def pages(config: EngineConfig, *, left: int, context_len: int = 1600) -> int:
    """left: bytes for pages, once weights and margin have theirs."""
    return plan_pages(
        config,
        context_len=context_len,
        page_bytes=PAGE,
        weight_bytes=WEIGHTS,
        available_bytes=WEIGHTS + MARGIN_BYTES + left,
    )


def test_by_default_the_pool_takes_a_quarter_of_what_the_weights_leave() -> None:
    assert 250 == pages(EngineConfig(), left=1000 * PAGE)


def test_by_default_the_pool_never_takes_more_than_two_gibibytes() -> None:
    assert (2 << 30) // PAGE == pages(EngineConfig(), left=100_000 * PAGE)


def test_the_pool_never_takes_more_than_all_contexts_that_can_run() -> None:
    config = EngineConfig(max_running=2)

    assert 200 == pages(config, left=100_000 * PAGE)
    assert 200 == pages(EngineConfig(max_running=2, kv_bytes=900 * PAGE), left=100_000 * PAGE)


@pytest.mark.parametrize(
    "config", [EngineConfig(kv_bytes=77 * PAGE), EngineConfig(kv_bytes=77 * PAGE + PAGE - 1)]
)
def test_kv_bytes_are_filled_with_whole_pages(config: EngineConfig) -> None:
    assert 77 == pages(config, left=1000 * PAGE)


def test_a_context_that_was_asked_for_gets_its_pages_if_they_fit() -> None:
    assert 900 == pages(EngineConfig(context_len=14_400), left=1000 * PAGE, context_len=14_400)


def test_weights_that_do_not_fit_are_said_with_numbers() -> None:
    with pytest.raises(EngineError) as caught:
        pages(EngineConfig(), left=PAGE - 1)

    assert "EN232" == caught.value.code
    assert "weights take 500.0 MB and one KV page 1.0 MB" in caught.value.message
    assert "268.4 MB stay free" in caught.value.message


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (EngineConfig(num_pages=101), "set num_pages to at most 100"),
        (EngineConfig(kv_bytes=150 * PAGE), "set kv_bytes to at most 100000000"),
    ],
)
def test_pages_that_do_not_fit_say_what_would(config: EngineConfig, fits: str) -> None:
    with pytest.raises(EngineError) as caught:
        pages(config, left=100 * PAGE, context_len=100_000)

    assert "EN232" == caught.value.code
    assert "100.0 MB are free beside weights of 500.0 MB" in caught.value.message
    assert caught.value.help is not None
    assert "what fits: 100 pages, which hold 1600 tokens" in caught.value.help
    assert fits in caught.value.help


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        (EngineConfig(context_len=3200, num_pages=100), "num_pages to at least 200"),
        (EngineConfig(context_len=3200, kv_bytes=100 * PAGE), "kv_bytes to at least 200000000"),
    ],
)
def test_a_context_that_the_pool_cannot_hold_is_refused(config: EngineConfig, advice: str) -> None:
    with pytest.raises(EngineError) as caught:
        pages(config, left=1000 * PAGE, context_len=3200)

    assert "EN233" == caught.value.code
    assert "3200 tokens takes 200 KV pages, 200.0 MB, and the pool has 100" in caught.value.message
    assert caught.value.help is not None
    assert "set context_len to at most 1600" in caught.value.help
    assert advice in caught.value.help


def test_a_context_that_the_memory_cannot_hold_says_how_much_there_is() -> None:
    with pytest.raises(EngineError) as caught:
        pages(EngineConfig(context_len=3200), left=100 * PAGE, context_len=3200)

    assert "EN233" == caught.value.code
    assert caught.value.help == "set context_len to at most 400: 100.0 MB are free for pages"


def test_kv_bytes_below_a_page_are_refused() -> None:
    with pytest.raises(EngineError, match="kv_bytes of 999999 hold no KV page") as caught:
        pages(EngineConfig(kv_bytes=PAGE - 1), left=1000 * PAGE)

    assert "EN231" == caught.value.code


def test_free_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n")
    group = tmp_path / "group"
    group.mkdir()

    assert 4000 * 1024 == free_memory(meminfo, group)

    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("2500000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 400000\n")
    assert 900_000 == free_memory(meminfo, group)

    (group / "memory.max").write_text("max\n")
    assert 4000 * 1024 == free_memory(meminfo, group)
    assert free_memory(tmp_path / "none", tmp_path) > 0


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (1500, "1.5 kB"), (2 * 10**9, "2.0 GB")]
)
def test_sizes_are_said_for_people(count: int, text: str) -> None:
    assert text == in_bytes(count)
