"""Guesses change how soon a text is said, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from core_client import output
from history_drafter import HistoryDrafter
from history_model import Updates, history_core, right_output

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    GenerationUsage,
    SequenceId,
    TokensArrived,
)
from flowforge.engine.speculation.lookup import LookupDrafter
from flowforge.engine.speculation.model_drafter import ModelDrafter
from flowforge.engine.speculation.same_tokens import require_same_tokens
from flowforge.engine.speculation.speculator import Speculation, Speculator
from flowforge.engine.speculation.token_index import TokenIndex
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.core import EngineCore
    from flowforge.engine.speculation.drafter import Drafter

PROMPT = [1, 2, 3, 4, 5]


def run(core: EngineCore, request: GenerationRequest, prompt: list[int] = PROMPT) -> Updates:
    """Generate behind a prompt until the end."""
    updates = Updates()
    core.open(SequenceId(1), Namespace("", ""))
    core.append(SequenceId(1), prompt)
    core.generate(SequenceId(1), request, updates)
    while core.has_work:
        core.step()
        core.check_invariants()
    core.close(SequenceId(1))
    return updates


def usage_of(updates: Updates) -> GenerationUsage:
    (usage,) = (update.usage for update in updates if isinstance(update, GenerationFinished))
    return usage


def with_drafter(drafter: Drafter, **options: int) -> tuple[EngineCore, Speculator]:
    speculator = Speculator(drafter, **options)
    core, _, _ = history_core(speculator=speculator)
    return core, speculator


@pytest.mark.parametrize("share_right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 24])
def test_what_is_said_does_not_depend_on_guesses(share_right: float, max_tokens: int) -> None:
    request = GenerationRequest(SamplingParams(max_tokens=max_tokens, temperature=0))
    plain = run(history_core()[0], request)
    drafter = HistoryDrafter(3, share_right)
    core, _ = with_drafter(drafter)

    guessed = run(core, request)

    assert right_output(PROMPT, max_tokens) == output(plain) == output(guessed)
    one, other = usage_of(plain), usage_of(guessed)
    assert one.output_tokens == other.output_tokens
    assert one.written_output_tokens == other.written_output_tokens
    assert 0 == drafter.num_open


def test_right_guesses_spare_steps_and_are_counted() -> None:
    request = GenerationRequest(SamplingParams(max_tokens=24, temperature=0))
    core, speculator = with_drafter(HistoryDrafter(share_right=1.0))

    num_said = len(output(run(core, request)))

    counted = core.statistics()
    assert counted.num_steps < num_said / 2
    assert counted.speculation.accepted == counted.speculation.drafted > 0
    assert counted.speculation == speculator.statistics()
    assert counted.generated_tokens == num_said


def test_a_model_that_guesses_is_cut_back_to_what_was_said() -> None:
    small, _, small_kv = history_core(num_pages=32)
    core, speculator = with_drafter(ModelDrafter(small))
    request = GenerationRequest(SamplingParams(max_tokens=24, temperature=0.2, seed=3))

    # The large model draws; the small one always says the likeliest.
    assert output(run(history_core()[0], request)) == output(run(core, request))
    counted = speculator.statistics()
    assert 0 < counted.accepted
    assert counted.accepted <= counted.drafted
    small.check_invariants()
    assert 0 == small_kv.statistics().pages_held


def test_a_model_that_cannot_read_a_text_guesses_nothing() -> None:
    small, _, _ = history_core(num_pages=2)
    core, speculator = with_drafter(ModelDrafter(small))
    request = GenerationRequest(SamplingParams(max_tokens=24, temperature=0))

    assert right_output(PROMPT, 24) == output(run(core, request))
    assert speculator.statistics().drafted < 6


def test_log_probabilities_are_those_of_the_tokens() -> None:
    params = SamplingParams(max_tokens=12, temperature=0, num_logprobs=2)
    core, _ = with_drafter(HistoryDrafter(5, 0.8))

    plain = run(history_core()[0], GenerationRequest(params))
    guessed = run(core, GenerationRequest(params))

    def logprobs(updates: Updates) -> list[object]:
        return [
            one
            for update in updates
            if isinstance(update, TokensArrived)
            for one in update.logprobs
        ]

    assert logprobs(plain) == logprobs(guessed)
    assert len(output(guessed)) == len(logprobs(guessed))


def test_a_full_step_tries_nothing() -> None:
    core, speculator = with_drafter(HistoryDrafter(share_right=1.0), most_rows=1)

    run(core, GenerationRequest(SamplingParams(max_tokens=8, temperature=0)))

    assert 0 == speculator.statistics().drafted


def test_guesses_take_no_page_from_anybody() -> None:
    # As many pages as the text itself needs.
    request = GenerationRequest(SamplingParams(max_tokens=3, temperature=0))
    speculator = Speculator(HistoryDrafter(share_right=1.0))
    core, _, kv = history_core(num_pages=2, speculator=speculator)

    assert right_output(PROMPT, 3) == output(run(core, request))
    assert 0 == kv.statistics().evicted_pages


def test_wrong_guesses_pause_for_longer_and_longer() -> None:
    speculation = Speculation(object())

    pauses: list[int] = []
    for _ in range(9):
        speculation.learn(3, 0)
        pauses.append(speculation.num_paused)

    assert [4, 8, 16, 32, 64, 128, 256, 256, 256] == pauses


def test_right_guesses_grow_and_half_right_ones_shrink() -> None:
    speculation = Speculation(object())

    speculation.learn(3, 3)
    assert 6 == speculation.most
    speculation.learn(6, 2)
    assert 3 == speculation.most


@pytest.mark.parametrize(
    ("text", "code"),
    [(None, "EN230"), ("{", "EN111"), ("[]", "EN111"), ("{}", "EN230"), ('{"model": 1}', "EN230")],
)
def test_a_model_without_a_readable_vocabulary_does_not_guess_for_another(
    tmp_path: Path, text: str | None, code: str
) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    for folder, told in ((large, '{"model": {"vocab": {"a": 0}}}'), (small, text)):
        folder.mkdir()
        if told is not None:
            (folder / "tokenizer.json").write_text(told)

    with pytest.raises(EngineError) as caught:
        require_same_tokens(large, small)

    assert code == caught.value.code


def test_models_of_equal_token_ids_guess_for_each_other(tmp_path: Path) -> None:
    token = {"id": 1, "content": "<end>", "special": True}
    for name, added in (("one", [token]), ("same", [{**token, "special": False}]), ("other", [])):
        (tmp_path / name).mkdir()
        told = {"model": {"vocab": {"a": 0}}, "added_tokens": added}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(told))

    require_same_tokens(tmp_path / "one", tmp_path / "same")
    with pytest.raises(EngineError, match=r"EN230.*has other tokens"):
        require_same_tokens(tmp_path / "one", tmp_path / "other")


def guess(
    drafter: LookupDrafter, tokens: list[int], key: str | None = None, most: int = 4
) -> list[int]:
    (found,) = drafter.propose([(drafter.begin(tokens, key), tokens, most)])
    return found


def test_a_text_that_repeats_itself_is_guessed() -> None:
    assert [4, 5, 1, 2] == guess(LookupDrafter(), [1, 2, 3, 4, 5, 1, 2, 3])


def test_a_text_that_says_nothing_twice_is_not_guessed() -> None:
    assert [] == guess(LookupDrafter(), [1, 2, 3, 4, 5, 6, 7])
    assert [] == guess(LookupDrafter(), [1, 2])


def test_a_guess_stays_with_the_longer_agreement() -> None:
    # 7, 8, 9 stood twice; the first time behind the same tokens as now.
    tokens = [5, 6, 7, 8, 9, 1, 2, 7, 8, 9, 3, 4, 5, 6, 7, 8, 9]

    assert [1] == guess(LookupDrafter(), tokens, most=1)


def test_the_beginning_of_a_long_prompt_is_guessed_from() -> None:
    tokens = [*range(1_000), 5, 6, 7]

    assert [8, 9, 10, 11] == guess(LookupDrafter(), tokens)


@pytest.mark.parametrize("num_known", range(6))
@pytest.mark.parametrize("num_added", range(6))
def test_tokens_added_at_once_are_found_like_those_added_one_by_one(
    num_known: int, num_added: int
) -> None:
    tokens = [1, 2, 3, 1, 2, 3, 4, 1, 2, 3][: num_known + num_added]
    at_once, one_by_one = TokenIndex(), TokenIndex()
    for token in tokens[:num_known]:
        at_once.append(token)

    at_once.extend(tokens[num_known:])
    for token in tokens:
        one_by_one.append(token)

    assert one_by_one.tokens == at_once.tokens
    runs = [(1, 2, 3), (2, 3, 1), (3, 1, 2), (2, 3, 4), (4, 1, 2)]
    assert [one_by_one.find(run) for run in runs] == [at_once.find(run) for run in runs]


def test_what_others_of_a_kind_said_is_guessed() -> None:
    drafter = LookupDrafter()
    drafter.learn("kind", [10, 11, 12, 13, 14])

    assert [13, 14] == guess(drafter, [1, 2, 10, 11, 12], "kind")
    assert [] == guess(drafter, [1, 2, 10, 11, 12], "other")
    assert [] == guess(drafter, [1, 2, 10, 11, 12])


def test_texts_of_a_kind_do_not_run_into_each_other() -> None:
    drafter = LookupDrafter()
    drafter.learn("kind", [10, 11, 12])
    drafter.learn("kind", [20, 21, 22])

    assert [] == guess(drafter, [10, 11, 12], "kind")


def test_memory_of_kinds_is_bounded() -> None:
    drafter = LookupDrafter(most_of_a_key=16, most_in_all=64)
    for key in range(100):
        for first in range(5):
            drafter.learn(str(key), list(range(first * 10 + 1, first * 10 + 9)))

    assert drafter.num_remembered <= 64
    assert [] == guess(drafter, [42, 43, 44], "0")
    assert [45, 46, 47, 48] == guess(drafter, [42, 43, 44], "99")
