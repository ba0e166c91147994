"""Cases of the bank about cached prefixes, on the stand-in that knows whose rows are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from history_model import Updates, history_core, right_output

from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.core import EngineCore
    from flowforge.engine.kv.path import KvPath


class SameHash(int):
    """A token id whose hash is that of every other: all pages collide in the tree."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) is True


class StopAt:
    """A stop condition: this token was said."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def is_met_by(self, token_ids: list[int]) -> bool:
        """See `StopCondition.is_met_by`."""
        return self._token_id in token_ids


def run(core: EngineCore, number: int, prompt: list[int], request: GenerationRequest) -> Updates:
    """Run one sequence to its end and close it."""
    updates = Updates()
    core.open(SequenceId(number), Namespace())
    core.append(SequenceId(number), prompt)
    core.generate(SequenceId(number), request, updates)
    while core.has_work:
        core.step()
    core.close(SequenceId(number))
    return updates


def greedy(max_tokens: int) -> GenerationRequest:
    return GenerationRequest(SamplingParams(max_tokens=max_tokens))


def said(updates: Updates) -> list[int]:
    arrived = [update for update in updates if isinstance(update, TokensArrived)]
    return [token for update in arrived for token in update.token_ids]


def reused(updates: Updates) -> int:
    end = updates[-1]
    assert isinstance(end, GenerationFinished)
    return end.usage.reused_tokens


def write(kv: KvCache, tokens: list[int]) -> KvPath:
    path = kv.open(Namespace())
    kv.advance(path, tokens, len(tokens))
    kv.reserve(path, len(tokens))
    kv.commit(path, tokens[path.num_tokens :])
    return path


def test_texts_that_part_inside_a_page_own_a_page_each() -> None:
    """KV-004: after "abd" is evicted, "abc" is still there."""
    kv = KvCache(num_pages=4, page_size=3)
    kept, gone = write(kv, [1, 2, 3]), write(kv, [1, 2, 4])
    assert kept.nodes[0].page != gone.nodes[0].page

    kv.release(gone)
    kv.drop_cached()

    kv.check_invariants()
    assert 1 == kv.statistics().pages_held
    assert 3 == kv.match_len(Namespace(), [1, 2, 3, 9], 3)


def test_what_is_free_cached_and_held_is_the_pool_after_every_operation() -> None:
    """KV-005: with 1 to 48, then 1 to 32 and 100 to 115."""
    kv = KvCache(num_pages=8, page_size=16)
    counts: list[tuple[int, int, int]] = []

    def note() -> None:
        kv.check_invariants()
        now = kv.statistics()
        counts.append((now.pages_free, now.pages_cached, now.pages_held))

    first = write(kv, list(range(1, 49)))
    note()
    second = write(kv, [*range(1, 33), *range(100, 116)])
    note()
    kv.release(second)
    note()
    kv.drop_cached()
    note()
    kv.release(first)
    note()
    kv.drop_cached()
    note()

    assert [(5, 0, 3), (4, 0, 4), (4, 1, 3), (5, 0, 3), (5, 3, 0), (8, 0, 0)] == counts


def test_no_page_is_lost_over_many_distinct_requests() -> None:
    """KV-009, KV-010: 2,000 requests on a pool that is full early; the next one works."""
    core, _, kv = history_core(num_pages=16, page_size=4, max_step_tokens=64)

    for number in range(2000):
        prompt = [1 + number % 49, 1 + number // 49, *range(1, 7)]
        run(core, number, prompt, greedy(2))
        now = kv.statistics()
        assert (0, 16) == (now.pages_held, now.pages_free + now.pages_cached)

    assert kv.statistics().evicted_pages > 0
    core.check_invariants()
    assert right_output([8, 7, 6], 3) == said(run(core, 2000, [8, 7, 6], greedy(3)))


def test_what_came_behind_a_stop_is_no_part_of_another_text() -> None:
    """KV-013."""
    core, _, _ = history_core(page_size=4)
    prompt = list(range(1, 12))
    cold = right_output(prompt, 12)
    warm_up = GenerationRequest(SamplingParams(max_tokens=12), stop=StopAt(cold[2]))
    assert cold[: 1 + cold.index(cold[2])] == said(run(core, 1, prompt, warm_up))

    assert cold == said(run(core, 2, prompt, greedy(12)))


def test_a_reply_that_comes_back_trimmed_is_reused_up_to_where_it_was_cut() -> None:
    """TK-020: 19 of 21 tokens are common; the trimmed history wins."""
    core, _, _ = history_core(page_size=16, max_step_tokens=64)
    prompt, reply, turn_end = list(range(1, 17)), [40, 41, 42, 43], 48
    run(core, 1, [*prompt, *reply, turn_end], greedy(1))

    sent_back = [*prompt, *reply[:3], turn_end, 5, 6]
    again = run(core, 2, sent_back, greedy(4))

    assert 19 == reused(again)
    assert right_output(sent_back, 4) == said(again)


def test_a_prompt_that_fits_only_without_its_output_is_refused_with_both_numbers() -> None:
    """TK-037, in a context of 1,000 tokens."""
    core, _, _ = history_core(num_pages=512, page_size=4)

    with pytest.raises(EngineError, match=r"900 tokens and up to 200 new .* of 1000 tok") as caught:
        run(core, 1, [1 + i % 49 for i in range(900)], greedy(200))

    assert "EN202" == caught.value.code


def test_prompts_whose_sums_are_equal_share_nothing_behind_their_difference() -> None:
    """KV-033: +31 at one id and -1 at the next, which collides in hashes of base 31."""
    core, _, _ = history_core(page_size=16, max_step_tokens=64)
    one = list(range(1, 33))
    other = [*one[:4], one[4] + 31, one[5] - 1, *one[6:]]

    first, second = run(core, 1, one, greedy(5)), run(core, 2, other, greedy(5))

    assert (right_output(one, 5), right_output(other, 5)) == (said(first), said(second))
    assert 4 == reused(second)


def test_pages_with_equal_hashes_are_told_apart_by_their_tokens() -> None:
    """KV-033: every hash in the tree is the same."""
    kv = KvCache(num_pages=8, page_size=2)
    texts = [[SameHash(token) for token in text] for text in ([1, 2, 3, 4], [1, 2, 5, 6], [7, 8])]
    assert hash(tuple(texts[0][:2])) == hash(tuple(texts[2]))
    paths = [write(kv, [*text]) for text in texts]

    nodes = {id(node) for path in paths for node in path.nodes}

    assert 4 == len(nodes)  # [1, 2] is shared, the others are not
    kv.check_invariants()


def test_who_left_in_the_middle_goes_on_with_what_it_has() -> None:
    """KV-035: the next turn sees its whole prompt, and nothing is held when all is idle."""
    core, _, kv = history_core(page_size=4)
    prompt, updates = list(range(1, 12)), Updates()
    core.open(SequenceId(1), Namespace())
    core.append(SequenceId(1), prompt)
    core.generate(SequenceId(1), greedy(30), updates)
    core.step()
    core.step()
    first = said(updates)[:1]
    core.close(SequenceId(1))

    history = [*prompt, *first, 48, 5, 6]
    again = run(core, 2, history, greedy(6))

    end = again[-1]
    assert isinstance(end, GenerationFinished)
    assert len(history) == end.usage.prompt_tokens
    assert right_output(history, 6) == said(again)
    assert 0 == kv.statistics().pages_held
