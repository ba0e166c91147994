"""What KV pages are used for: letters of the cache, the short text that carries them, samples."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.backends.page_maps import MAX_RUNS, map_of, watched
from flowforge.backends.script import ScriptBackend
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.errors import EngineError
from flowforge.runtime.events import PagesSampled
from flowforge.runtime.page_samples import PageSampler

if TYPE_CHECKING:
    from flowforge.backends.protocol import BackendStatistics
    from flowforge.engine.kv.path import KvPath


def written(kv: KvCache, path: KvPath, num_tokens: int) -> None:
    kv.reserve(path, num_tokens)
    kv.commit(path, [*range(path.num_tokens, num_tokens)])


def test_each_page_has_the_letter_of_its_use() -> None:
    kv = KvCache(8, 4)
    trunk = kv.open(Namespace())
    written(kv, trunk, 9)
    assert "ttpfffff" == kv.page_uses()
    branch = kv.fork(trunk)
    assert "sspfffff" == kv.page_uses()
    kv.reserve(branch, 16)
    assert "sspppfff" == kv.page_uses()
    kv.release(branch)
    kv.release(trunk)
    assert "cccfffff" == kv.page_uses()
    kv.check_invariants()


@given(st.text("fptsc", max_size=2_000))
def test_a_map_covers_every_page_in_a_bounded_number_of_runs(uses: str) -> None:
    told = re.findall(r"([a-z])(\d+)", map_of(uses))

    assert len(told) <= MAX_RUNS
    assert len(uses) == sum(int(count) for _, count in told)
    if len(re.findall(r"(.)\1*", uses)) <= MAX_RUNS:
        assert uses == "".join(letter * int(count) for letter, count in told)


class Paged(ScriptBackend):
    """Counts the looks at its pages; ends at the third."""

    def __init__(self) -> None:
        super().__init__({})
        self.looked = anyio.Event()

    async def page_uses(self) -> str:
        if self.looked.is_set():
            raise EngineError("EN206", "the engine has ended")
        self.looked.set()
        return "ssf"


async def test_a_watched_backend_tells_its_pages_until_it_ends() -> None:
    backend = Paged()
    async with watched(backend) as seen:
        await backend.looked.wait()
        assert "s2f1" == seen.statistics().page_map
        await seen.look()
    async with watched(ScriptBackend({})) as seen:
        await seen.look()
        assert "" == seen.statistics().page_map


class Told(ScriptBackend):
    page_map = "p1f2"

    def statistics(self) -> BackendStatistics:
        if not self.page_map:
            raise EngineError("EN206", "the engine has ended")
        return replace(super().statistics(), page_map=self.page_map)


def test_a_sample_is_told_once_for_each_change_and_once_a_second() -> None:
    backend = Told({})
    sampler = PageSampler(backend)

    assert [PagesSampled("p1f2")] == sampler.look(0.0)
    assert [] == sampler.look(5.0)
    backend.page_map = "p2f1"
    assert [PagesSampled("p2f1")] == sampler.look(6.0)
    backend.page_map = "p3"
    assert [] == sampler.look(6.5)
    backend.page_map = ""
    assert [] == sampler.look(9.0)
    assert [] == PageSampler(ScriptBackend({})).look(0.0)


@pytest.mark.parametrize("uses", ["", "f"])
def test_maps_of_few_pages(uses: str) -> None:
    assert ("f1" if uses else "") == map_of(uses)
