"""KV pages that were evicted come back from the machine's memory, bit by bit, and only as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from core_client import Client
from history_model import Updates, history_core, right_output
from model_core import model_core
from random_models import tiny_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.cache import KvCache, Reserved
from flowforge.engine.kv.host_rows import HostRows, checksum
from flowforge.engine.kv.host_tier import HostSlot, HostTier, Offload, Restore
from flowforge.engine.kv.pool import PageId
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.memory import MARGIN_BYTES, plan_host_slots
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFailed,
    GenerationFinished,
    GenerationRequest,
    TokensArrived,
)
from flowforge.errors import EngineError, InternalError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.models.decoder import Decoder

PAGE_SIZE = 4
NAMESPACE = Namespace()


def cached(kv: KvCache, tokens: list[int], namespace: Namespace = NAMESPACE) -> int:
    """Compute a text as a path does; how many of its tokens were there."""
    path = kv.open(namespace)
    kv.advance(path, tokens, len(tokens) - 1)
    known = path.num_tokens
    assert isinstance(kv.reserve(path, len(tokens)), Reserved)
    kv.commit(path, tokens[known:])
    kv.take_restored()
    kv.release(path)
    kv.check_invariants()
    return known


def text(first: int, num_pages: int) -> list[int]:
    return [first, *range(100, 99 + num_pages * PAGE_SIZE)]


def test_evicted_pages_come_back_as_far_as_they_match() -> None:
    kv = KvCache(4, PAGE_SIZE, host=HostTier(8))
    cached(kv, text(1, 3))
    cached(kv, text(2, 4))
    assert [Offload(PageId(2), HostSlot(0)), Offload(PageId(1), HostSlot(1))] == kv.take_moves()[:2]

    known = cached(kv, [*text(1, 2), 7, 8, 9])

    assert 2 * PAGE_SIZE == known
    moves = kv.take_moves()
    restored = [move for move in moves if isinstance(move, Restore)]
    assert [HostSlot(2), HostSlot(1)] == [move.slot for move in restored]
    # Room is made first: what is evicted leaves before what comes.
    assert isinstance(moves[0], Offload)
    assert 2 == kv.statistics().host.restored_pages


def test_a_page_that_came_back_is_not_copied_out_again() -> None:
    kv = KvCache(4, PAGE_SIZE, host=HostTier(8))
    for first in (1, 2, 1, 2, 1):
        cached(kv, text(first, 4))

    host = kv.statistics().host
    assert 8 == host.offloaded_pages == host.pages_used
    # The last page is computed again: its logits are wanted.
    assert 9 == host.restored_pages


def test_namespaces_do_not_see_each_other_s_pages() -> None:
    kv = KvCache(4, PAGE_SIZE, host=HostTier(16))
    cached(kv, text(1, 4), Namespace(salt="a"))
    cached(kv, text(2, 4))

    assert 0 == cached(kv, text(1, 4), Namespace(salt="b"))
    assert 3 * PAGE_SIZE == cached(kv, text(1, 4), Namespace(salt="a"))


def test_a_full_host_forgets_what_was_used_least_lately_from_its_end() -> None:
    kv = KvCache(4, PAGE_SIZE, host=HostTier(6))
    for first in (1, 2, 3):
        cached(kv, text(first, 4))
    # Of the first text two pages had to go: its last ones.
    assert 6 == kv.statistics().host.pages_used

    assert 2 * PAGE_SIZE == cached(kv, text(1, 4))


def test_making_room_may_forget_what_was_to_come_back() -> None:
    """One slot: what must leave takes it from what was to come."""
    kv = KvCache(2, PAGE_SIZE, host=HostTier(1))
    cached(kv, text(1, 2))
    cached(kv, text(2, 2))

    assert 0 == cached(kv, text(1, 2))
    kv.check_invariants()


def test_moves_that_failed_bring_nothing() -> None:
    core, runner, kv = history_core(num_pages=10, num_host_slots=32)
    client = Client(core)
    prompts = [[first, *range(10, 40)] for first in (5, 6)]
    for prompt in prompts:
        client.request(prompt, 1)
        client.run()

    runner.error = RuntimeError("the device is gone")
    failed = client.request(prompts[0], 3)
    client.run()
    assert isinstance(failed[-1], GenerationFailed)
    assert any(isinstance(move, Restore) for move in runner.plans[-1].moves)
    core.check_invariants()
    assert 0 == kv.statistics().host.pages_used
    runner.error = None
    again = client.request(prompts[0], 3)
    client.run()

    arrived = [update for update in again if isinstance(update, TokensArrived)]
    assert right_output(prompts[0], 3) == [one for update in arrived for one in update.token_ids]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_come_back_with_every_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn((2, 2, 3, 8 * PAGE_SIZE, 16), generator=generator).to(dtype)
    rows[0, 0, 0, PAGE_SIZE] = torch.nan
    page = rows[..., PAGE_SIZE : 2 * PAGE_SIZE, :]
    before, whole = checksum(page), rows.clone()
    host = HostRows((rows,), PAGE_SIZE, 3, verifies=True)

    host.offload(PageId(1), HostSlot(2))
    page.zero_()
    assert before != checksum(page)
    host.restore(HostSlot(2), PageId(1))
    host.restore(HostSlot(2), PageId(5))

    assert before == checksum(page)
    assert before == checksum(rows[..., 5 * PAGE_SIZE : 6 * PAGE_SIZE, :])
    others = [*range(PAGE_SIZE), *range(2 * PAGE_SIZE, 5 * PAGE_SIZE)]
    assert torch.equal(whole[..., others, :], rows[..., others, :])


def test_rows_that_come_back_as_other_ones_are_a_defect() -> None:
    host = HostRows((torch.zeros(1, 2, 1, 4 * PAGE_SIZE, 8),), PAGE_SIZE, 2, verifies=True)
    host.offload(PageId(0), HostSlot(0))
    vars(host)["_slots"][0][0, 0, 0, 0, 0, 0] = 1.0

    with pytest.raises(InternalError, match="page 3 came back from slot 0") as caught:
        host.restore(HostSlot(0), PageId(3))

    assert "IN205" == caught.value.code


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def decoder(model_dir: Path) -> Decoder:
    return load_decoder(model_dir, dtype=torch.float32)


def test_an_engine_answers_from_pages_that_came_back_as_it_did_before(decoder: Decoder) -> None:
    """Debug mode checks every row that is read, and every checksum."""
    core, kv = model_core(decoder, num_pages=12, num_host_slots=64)
    client = Client(core)
    prompts = [[first, *range(20, 55)] for first in (3, 4, 5)]

    def answers() -> list[list[float]]:
        found: list[list[float]] = []
        for prompt in prompts:
            updates = Updates()
            params = SamplingParams(max_tokens=4, num_logprobs=0)
            core.generate(client.open(prompt), GenerationRequest(params), updates)
            client.run()
            assert isinstance(updates[-1], GenerationFinished)
            arrived = [one for one in updates if isinstance(one, TokensArrived)]
            found.append([one.logprob for update in arrived for one in update.logprobs])
        return found

    first, prefilled = answers(), core.statistics().prefilled_tokens
    second = answers()

    for one, other in zip(first, second, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    # 36 tokens are 9 pages; of each prompt the last tokens are computed, nothing else.
    assert core.statistics().prefilled_tokens - prefilled <= 3 * PAGE_SIZE
    assert kv.statistics().host.restored_pages > 0


def test_an_engine_takes_the_host_s_memory_that_it_is_given(model_dir: Path) -> None:
    config = EngineConfig(device="cpu", num_pages=4, host_cache_bytes=1 << 20, dtype="float32")
    core = load_core(model_dir, vocab_size=120, config=config)

    statistics = core.statistics()
    page_bytes = statistics.memory.kv_bytes_per_token * 16

    assert (1 << 20) // page_bytes == statistics.kv.host.pages_total


def test_a_host_cache_that_cannot_be_is_refused() -> None:
    def slots(num_bytes: int, free_bytes: int) -> int:
        return plan_host_slots(EngineConfig(host_cache_bytes=num_bytes), 1000, free_bytes)

    assert 0 == slots(0, 0)
    assert 7 == slots(7999, MARGIN_BYTES + 8000)
    with pytest.raises(EngineError, match="hold no KV page of 1000 bytes") as caught:
        slots(999, MARGIN_BYTES + 8000)
    assert "EN231" == caught.value.code
    with pytest.raises(EngineError, match="beside the rest") as caught:
        slots(8001, MARGIN_BYTES + 8000)
    assert "EN232" == caught.value.code
    with pytest.raises(EngineError, match="host_cache_bytes must be at least 0"):
        EngineConfig(host_cache_bytes=-1)
