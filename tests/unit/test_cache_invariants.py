"""What must hold of the cache, one by one; the machines in tests/property hold them all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from core_client import Client, is_over, output, text
from history_model import Updates, history_core, right_output
from hypothesis import given
from hypothesis import strategies as st

from flowforge.engine.kv.cache import KvCache, Reserved, ShortBy
from flowforge.engine.kv.pool import PageId
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.kv.tokens import common_prefix_len

if TYPE_CHECKING:
    from flowforge.engine.kv.path import KvPath

TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=6)
SPACE = Namespace()


def write(kv: KvCache, tokens: list[int], *, looks: bool = True) -> KvPath:
    """A path with these tokens; looks: for what is there already, as admission does."""
    path = kv.open(SPACE)
    if looks:
        kv.advance(path, tokens, len(tokens))
    assert isinstance(kv.reserve(path, len(tokens)), Reserved)
    kv.commit(path, tokens[path.num_tokens :])
    return path


def pages_of(path: KvPath) -> list[PageId | None]:
    return [node.page for node in path.nodes] + [*path.private]


def state_of(kv: KvCache) -> object:
    """Everything that tells one state of the cache from another, last uses aside."""
    tree = kv._tree  # pyright: ignore[reportPrivateUsage]
    free = [page for page in range(kv.num_pages) if kv.is_free(PageId(page))]
    nodes = [(node.depth, node.tokens, node.page, node.num_paths) for node in tree.nodes()]
    tails = [(tuple(tail.tokens), tail.page, tail.is_live) for tail in tree.tails()]
    return free, sorted(nodes), sorted(tails)


@given(texts=TEXTS, wanted=st.lists(st.integers(0, 1), min_size=1, max_size=16))
def test_a_match_is_the_longest_prefix_that_was_written_and_changes_nothing(
    texts: list[list[int]], wanted: list[int]
) -> None:
    """Exact to the token, live or not, and never past its limit."""
    kv = KvCache(num_pages=64, page_size=4)
    for number, tokens in enumerate(texts):
        path = write(kv, tokens)
        if number % 2:
            kv.release(path)
    before = state_of(kv)
    longest = max(common_prefix_len(tokens, wanted) for tokens in texts)

    for limit in range(len(wanted) + 1):
        assert min(limit, longest) == kv.match_len(SPACE, wanted, limit)
    assert before == state_of(kv)


@given(texts=TEXTS)
def test_what_was_written_is_matched_whole(texts: list[list[int]]) -> None:
    kv = KvCache(num_pages=64, page_size=4)

    for tokens in texts:
        kv.release(write(kv, tokens))

    for tokens in texts:
        assert len(tokens) == kv.match_len(SPACE, tokens, len(tokens))


@pytest.mark.parametrize("num_tokens", [3, 4, 8, 11])
def test_a_duplicate_gives_its_full_pages_back_and_keeps_no_freed_one(num_tokens: int) -> None:
    kv = KvCache(num_pages=16, page_size=4)
    first = write(kv, text(num_tokens))
    free = kv.num_free

    second = write(kv, text(num_tokens), looks=False)

    num_full = num_tokens // 4
    assert pages_of(first)[:num_full] == pages_of(second)[:num_full]
    assert free - (num_tokens % 4 > 0) == kv.num_free
    assert not any(kv.is_free(page) for page in pages_of(second) if page is not None)
    kv.check_invariants()


@pytest.mark.parametrize("is_discarded", [False, True])
def test_a_release_more_changes_nothing(is_discarded: bool) -> None:
    kv = KvCache(num_pages=8, page_size=4)
    path = write(kv, text(10))
    release = kv.discard if is_discarded else kv.release
    release(path)
    once = state_of(kv)

    kv.release(path)
    kv.discard(path)

    assert once == state_of(kv)
    kv.drop_cached()
    assert 8 == kv.num_free


def test_a_held_page_and_those_above_it_are_never_evicted() -> None:
    kv = KvCache(num_pages=8, page_size=4)
    kv.release(write(kv, text(20)))
    held = write(kv, text(12))

    assert isinstance(kv.reserve(kv.open(SPACE), 4 * 5), Reserved)
    short = kv.reserve(kv.open(SPACE), 4)

    assert ShortBy(1) == short
    assert 12 == kv.match_len(SPACE, text(20), 20)
    assert not any(kv.is_free(page) for page in pages_of(held) if page is not None)


@pytest.mark.parametrize("num_children", [1, 2, 5])
def test_forks_take_a_page_each_at_most_and_write_apart(num_children: int) -> None:
    core, _, kv = history_core(num_pages=64, page_size=4, max_step_tokens=64)
    client = Client(core)
    parent = client.open(text(10))
    core.prefill(parent, Updates())
    client.run()
    free = kv.num_free

    children = [client.fork(parent) for _ in range(num_children)]
    assert free == kv.num_free
    updates: list[Updates] = []
    for number, child in enumerate(children):
        core.append(child, [30 + number])
        updates.append(client.start(child, 1))
    client.run()

    assert free - num_children <= kv.num_free
    assert 10 == core.num_tokens(parent)
    again = client.start(parent, 4)
    client.run()
    assert right_output(text(10), 4) == output(again)
    for number, one in enumerate(updates):
        assert right_output([*text(10), 30 + number], 1) == output(one)


@pytest.mark.parametrize("num_free", [0, 1, 4])
def test_an_admission_that_lacks_pages_leaves_everything_as_it_was(num_free: int) -> None:
    """The prompt matches four pages and two rows, and lacks one page: nothing is taken for it."""
    core, _, kv = history_core(num_pages=16, page_size=4, max_step_tokens=64)
    client = Client(core)
    kv.release(write(kv, text(18)))
    other = kv.open(Namespace(salt="held by somebody else"))
    kv.reserve(other, 4 * (11 - num_free))
    waiting = client.request([*text(18), *text(4 * num_free + 3, first=5)], 2)
    before = state_of(kv)

    for _ in range(3):
        core.step()
        assert before == state_of(kv)
        core.check_invariants()

    assert not output(waiting)
    kv.release(other)
    client.run()
    assert is_over(waiting)


@pytest.mark.parametrize("count", range(1, 8))
def test_so_many_pages_are_evicted_as_are_asked_for_or_none(count: int) -> None:
    """8 pages: two are held, one of them shared; the other six are cached or free."""
    kv = KvCache(num_pages=8, page_size=4)
    kv.release(write(kv, text(18)))
    write(kv, text(6))
    before = state_of(kv)

    reserved = kv.reserve(kv.open(SPACE), 4 * count)

    if count <= 6:
        assert Reserved() == reserved
        assert 6 - count == kv.num_available
    else:
        assert ShortBy(count - 6) == reserved
        assert before == state_of(kv)
    kv.check_invariants()
