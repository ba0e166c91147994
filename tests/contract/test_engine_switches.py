"""Greedy texts are the same in float32, whatever the engine saves itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from random_models import small_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.native.library import find_library
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId, TokensArrived

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.core import EngineCore
    from flowforge.engine.sequence import Update

VOCAB_SIZE, NUM_TOKENS = 300, 24
# Fewer pages than the texts take together, so that some are evicted and computed again.
NUM_PAGES = 28
SAVES_NOTHING = EngineConfig(
    num_pages=NUM_PAGES,
    dtype="float32",
    shared_attention="off",
    speculation="off",
    policy=SchedulingPolicy(
        reuse="none",
        admission="arrival",
        spares_duplicates=False,
        shares_logits=False,
        eviction="lru",
        spares_output=False,
        critical_first=False,
        frees_last_uses=False,
    ),
)
SWITCHES = {
    "kernels": replace(SAVES_NOTHING, dtype="auto"),
    "one call a step": replace(SAVES_NOTHING, dtype="auto", is_deterministic=True),
    "shared reads by torch": replace(SAVES_NOTHING, shared_attention="on"),
    "shared reads by kernels": replace(SAVES_NOTHING, dtype="auto", shared_attention="on"),
    "speculation": replace(SAVES_NOTHING, speculation="lookup"),
    "reuse and order": replace(SAVES_NOTHING, policy=SchedulingPolicy()),
    "reuse of pages": replace(SAVES_NOTHING, policy=SchedulingPolicy(reuse="pages")),
    "chunks": replace(SAVES_NOTHING, max_step_tokens=16),
    "few at once": replace(SAVES_NOTHING, max_running=2),
    "small pages": replace(SAVES_NOTHING, page_size=4, num_pages=4 * NUM_PAGES),
    "host cache": replace(SAVES_NOTHING, policy=SchedulingPolicy(), host_cache_bytes=1 << 20),
    "overlap": replace(SAVES_NOTHING, overlap="on"),
    "overlap and all else": EngineConfig(
        num_pages=NUM_PAGES, dtype="float32", overlap="on", host_cache_bytes=1 << 20, is_debug=True
    ),
    "everything": EngineConfig(num_pages=NUM_PAGES, is_deterministic=True),
}


class Reader:
    """Keeps the tokens of one generation."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def put(self, update: Update) -> None:
        if isinstance(update, TokensArrived):
            self.token_ids += update.token_ids


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_library() is None:
        pytest.skip("there is no C compiler on this machine")
    directory = tmp_path_factory.mktemp("model")
    small_llama(
        vocab_size=VOCAB_SIZE, num_hidden_layers=3, max_position_embeddings=256
    ).save_pretrained(directory)
    return directory


def written(core: EngineCore) -> list[list[int]]:
    """Branches, one that goes on later, prompts with a common beginning, and a repetition."""
    root, request = [7 * idx % 290 + 3 for idx in range(50)], SamplingParams(max_tokens=NUM_TOKENS)
    prompts = {
        1: [*root, 11, 12, 13],
        2: [*root, 21],
        3: [*root, *range(100, 109)],
        4: [*root[:30], 5, 6],
        5: [*root[:30], 5, 6],
        6: [31, 32, 33, 34] * 8,
    }
    core.open(SequenceId(0), Namespace())
    core.append(SequenceId(0), root)
    core.prefill(SequenceId(0), Reader())
    run(core)
    readers: list[Reader] = []

    def write(number: int) -> None:
        readers.append(Reader())
        core.generate(SequenceId(number), GenerationRequest(request), readers[-1])

    for number, prompt in prompts.items():
        if prompt[: len(root)] == root:
            core.fork(SequenceId(0), SequenceId(number))
            core.append(SequenceId(number), prompt[len(root) :])
        else:
            core.open(SequenceId(number), Namespace())
            core.append(SequenceId(number), prompt)
        write(number)
    run(core)
    core.fork(SequenceId(3), SequenceId(7))
    core.append(SequenceId(7), [3, 4, 5])
    write(7)
    run(core)
    return [reader.token_ids for reader in readers]


def run(core: EngineCore) -> None:
    while core.has_work:
        core.step()
    core.check_invariants()


def test_no_switch_changes_a_greedy_text(model_dir: Path) -> None:
    expected = written(load_core(model_dir, vocab_size=VOCAB_SIZE, config=SAVES_NOTHING))

    assert all(len(token_ids) > 0 for token_ids in expected)
    assert len({tuple(token_ids) for token_ids in expected}) == len(expected) - 1  # 4 and 5 are one
    for name, config in SWITCHES.items():
        found = written(load_core(model_dir, vocab_size=VOCAB_SIZE, config=config))
        assert expected == found, name
