"""Debug mode finds a cache that is broken on purpose, whatever is broken in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from random_models import tiny_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.audit import KvAudit
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.moves import RowCopy
from flowforge.engine.kv.path import Extent
from flowforge.engine.kv.pool import PageId
from flowforge.engine.kv.prefix_tree import Namespace, PrefixTree
from flowforge.engine.loading import engine_for
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest
from flowforge.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.engine.engine import Engine
    from flowforge.engine.kv.nodes import Match, Node
    from flowforge.engine.kv.path import KvPath

    Breakage = Callable[[pytest.MonkeyPatch], None]

FIRST = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
OTHER = [5, 6, 7, 8, 9, 99, 98, 97, 96, 95]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(directory)
    return directory


def engine(model_dir: Path, *, is_debug: bool) -> Engine:
    config = EngineConfig(num_pages=12, page_size=4, num_threads=1, is_debug=is_debug)
    return engine_for(model_dir, vocab_size=120, config=config)


async def generate(running: Engine, prompt: list[int], num_tokens: int = 3) -> list[int]:
    sequence = running.open(prompt)
    request = GenerationRequest(SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    async for _ in sequence.generate(request):
        pass
    await sequence.close()
    return sequence.tokens[len(prompt) :]


def match_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree takes the tokens it has for those it was asked for."""
    real = PrefixTree.match_under

    def match_under(self: PrefixTree, start: Node, tokens: list[int], limit: int) -> Match:
        known: list[int] = []
        node = start
        while node.children and len(known) < limit:
            node = next(iter(node.children.values()))
            known += node.tokens
        return real(self, start, known[:limit] + tokens[len(known) :], limit)

    monkeypatch.setattr(PrefixTree, "match_under", match_under)


def forget_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a partly matching page are taken for copied, and are not."""
    real = KvCache.advance

    def advance(self: KvCache, path: KvPath, tokens: list[int], limit: int) -> RowCopy | None:
        real(self, path, tokens, limit)
        return None

    monkeypatch.setattr(KvCache, "advance", advance)


def free_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is free although a path reads it."""
    real = KvCache.commit

    def commit(self: KvCache, path: KvPath, tokens: list[int]) -> None:
        had = len(path.nodes)
        real(self, path, tokens)
        if path.nodes and not had:
            page = path.nodes[0].page
            assert page is not None
            self._pool.release([page])  # pyright: ignore[reportPrivateUsage]  # the breakage

    monkeypatch.setattr(KvCache, "commit", commit)


def mix_up_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path's block table names its pages in a wrong order."""
    real = KvCache.commit

    def commit(self: KvCache, path: KvPath, tokens: list[int]) -> None:
        real(self, path, tokens)
        if len(path.nodes) == 2:
            pages = [
                PageId(one.first_page + i) for one in path.extents for i in range(one.num_pages)
            ]
            path.extents[:] = [Extent(page, 1) for page in reversed(pages)]

    monkeypatch.setattr(KvCache, "commit", commit)


@pytest.mark.parametrize(
    "breakage", [match_anything, forget_copies, free_what_is_held, mix_up_pages]
)
async def test_a_broken_cache_fails_in_debug_mode(
    breakage: Breakage, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage(monkeypatch)

    async with engine(model_dir, is_debug=True) as running:
        with pytest.raises(InternalError) as caught:
            await generate(running, FIRST)
            await generate(running, OTHER)

    assert "IN203" == caught.value.code


async def test_a_broken_cache_is_silent_without_debug_mode(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(model_dir, is_debug=False) as running:
        expected = await generate(running, OTHER, 8)
    match_anything(monkeypatch)

    async with engine(model_dir, is_debug=False) as running:
        await generate(running, FIRST, 8)
        assert expected != await generate(running, OTHER, 8)


async def test_debug_mode_changes_no_token(model_dir: Path) -> None:
    outputs: list[list[list[int]]] = []
    for is_debug in (True, False):
        async with engine(model_dir, is_debug=is_debug) as running:
            outputs.append([await generate(running, prompt, 8) for prompt in (FIRST, OTHER, FIRST)])

    assert outputs[0] == outputs[1]
    assert outputs[0][0] == outputs[0][2]


def test_freed_pages_are_struck_out_after_the_copies_unless_taken_again() -> None:
    """A plan may free a page, copy out of it and take it for something else."""
    poisoned: list[PageId] = []
    audit = KvAudit(2, 4, poisoned.extend)
    kv = KvCache(2, 4, audit.note_freed)
    path = kv.open(Namespace())
    kv.reserve(path, 8)
    kv.release(path)
    again = kv.open(Namespace())
    kv.reserve(again, 4)

    audit.moved((), kv.is_free)
    audit.moved((), kv.is_free)

    assert [1] == poisoned


def test_a_tag_stands_for_a_token_and_all_before_it_in_its_namespace() -> None:
    audit = KvAudit(4, 4, lambda _: None)
    slots = np.arange(4)
    audit.read_and_written(Namespace(), [1, 2, 3, 4], slots, 0)
    audit.moved([RowCopy(PageId(0), PageId(2), 3)], lambda _: False)

    audit.read_and_written(Namespace(), [1, 2, 3, 5], np.arange(8, 12), 3)
    for namespace, tokens in ((Namespace(), [9, 2, 3, 4]), (Namespace(salt="x"), [1, 2, 3, 4])):
        with pytest.raises(InternalError, match="another text's token"):
            audit.read_and_written(namespace, tokens, slots, 3)
    with pytest.raises(InternalError, match="no token"):
        audit.read_and_written(Namespace(), [1, 2, 3, 4], np.arange(4, 8), 3)
