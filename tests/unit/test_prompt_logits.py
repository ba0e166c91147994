"""Which logits behind prompts are kept, and what an equal prompt computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from core_client import Client, text
from history_model import VOCAB_SIZE, Updates, history_core

from flowforge.engine import prompt_logits
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.prompt_logits import PromptLogits, most_logit_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

NAMESPACE = Namespace()
ROW = np.zeros(100, dtype=np.float32)
# Of a prompt of three tokens.
ENTRY_BYTES = 4 * 100 + 8 * 3


def kept_of(logits: PromptLogits, numbers: range) -> list[int]:
    return [number for number in numbers if logits.find(NAMESPACE, [number, 1, 2]) is not None]


def is_cached(namespace: Namespace, tokens: tuple[int, ...]) -> bool:
    """All but one."""
    assert NAMESPACE == namespace
    return tokens[0] != 1


def keep(logits: PromptLogits, number: int, row: npt.NDArray[np.float32] = ROW) -> None:
    logits.keep(NAMESPACE, [number, 1, 2], row)


def test_logits_are_kept_up_to_their_bytes_and_the_longest_unused_go() -> None:
    logits = PromptLogits(3 * ENTRY_BYTES, is_cached)
    for number in range(2, 5):
        keep(logits, number)
    assert [2] == kept_of(logits, range(2, 3))
    keep(logits, 4)

    keep(logits, 5)

    assert [2, 4, 5] == kept_of(logits, range(6))


def test_logits_whose_rows_are_cached_no_more_go_first() -> None:
    logits = PromptLogits(3 * ENTRY_BYTES, is_cached)
    for number in range(4):
        keep(logits, number)

    assert [0, 2, 3] == kept_of(logits, range(4))


def test_logits_that_are_larger_than_all_there_is_are_kept_until_others_come() -> None:
    logits = PromptLogits(1, is_cached)
    for number in range(2):
        keep(logits, number)

    assert [1] == kept_of(logits, range(2))


@pytest.mark.parametrize(
    ("kv_bytes", "most"), [(0, 16 << 20), (1 << 30, 32 << 20), (80 << 30, 256 << 20)]
)
def test_logits_may_take_a_thirty_second_of_the_pages(kv_bytes: int, most: int) -> None:
    assert most == most_logit_bytes(kv_bytes)


def test_of_a_hundred_branches_that_come_again_nothing_is_computed_twice() -> None:
    core, runner, _ = history_core(num_pages=400)
    client = Client(core)
    root = client.open(text(9))
    branches = [[*text(9), 20 + number // 30, 20 + number % 30] for number in range(100)]
    sequences = [client.open(tokens) for tokens in branches]
    for _ in range(2):
        for sequence in (root, *sequences):
            client.start(client.fork(sequence), 1)
        client.run()

    distinct = 9 + (100 + 29) // 30 + 100
    assert distinct == runner.num_computed


def test_logits_of_a_last_use_make_room_before_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_logits, "_LEAST_BYTES", 2 * (4 * VOCAB_SIZE + 8 * 5))
    core, runner, _ = history_core()
    client = Client(core)
    held, passing = client.open(text(5)), client.open(text(5, first=9))
    core.expect_last_use(passing)
    for sequence in (held, passing):
        core.prefill(sequence, Updates())
        client.run()
    core.close(passing)
    client.request(text(5, first=17), 1)
    client.run()
    before = runner.num_computed

    again = client.open(text(5))
    core.prefill(again, Updates())
    client.run()

    assert 0 == runner.num_computed - before
