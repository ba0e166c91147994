from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowforge.backends.protocol import (
    BackendStatistics,
    GenerationCut,
    GenerationDone,
    ScoringDone,
    Usage,
)
from flowforge.runtime.accounting import AccountBook

Ids = tuple[int, ...]


def done(prompt_ids: Ids | None, output_ids: Ids | None) -> GenerationDone:
    return GenerationDone("", "stop", Usage(), prompt_ids, output_ids)


def unique(*generations: GenerationDone) -> int | None:
    book = AccountBook()
    for generation in generations:
        book.enter(generation)
    return book.total(BackendStatistics(), 0.0).unique_prompt_tokens


def test_a_shared_prefix_counts_once() -> None:
    assert 4 == unique(done((1, 2, 3), (9,)), done((1, 2, 4), (9,)))


def test_output_tokens_but_the_last_need_no_prefill_in_a_continuation() -> None:
    assert 2 + 2 == unique(done((1, 2), (7, 8, 9)), done((1, 2, 7, 8, 9, 3), ()))


def test_an_empty_output_wrote_nothing() -> None:
    assert 3 == unique(done((1, 2), ()), done((1, 2, 3), ()))


def test_without_token_ids_the_number_is_unknown_for_good() -> None:
    assert unique(done(None, None), done((1,), (2,))) is None


def test_usage_is_summed_beside_the_pages_of_the_backend() -> None:
    book = AccountBook()
    book.enter(GenerationDone("", "stop", Usage(10, 4, 6, 3)))
    book.enter(GenerationDone("", "length", Usage(5, 5, 0, 2)))

    total = book.total(BackendStatistics(pages_total=64, pages_peak=7), 1.5)

    assert (9, 6, 5, 7, 64, 1.5) == (
        total.prefilled_tokens,
        total.reused_tokens,
        total.generated_tokens,
        total.pages_peak,
        total.pages_total,
        total.duration_s,
    )


IDS = st.lists(st.integers(0, 2), max_size=6).map(tuple)


@given(st.lists(st.tuples(IDS, IDS), max_size=6))
def test_unique_tokens_are_prefixes_of_prompts_that_nobody_wrote_before(
    generations: list[tuple[Ids, Ids]],
) -> None:
    written = set[Ids]()
    num_unique = 0
    for prompt_ids, output_ids in generations:
        prefixes = {prompt_ids[:end] for end in range(1, len(prompt_ids) + 1)}
        num_unique += len(prefixes - written)
        path = prompt_ids + output_ids[:-1]
        written |= {path[:end] for end in range(1, len(path) + 1)}

    assert num_unique == unique(*(done(prompt, output) for prompt, output in generations))


def test_a_backend_may_say_how_many_output_tokens_it_wrote() -> None:
    first = GenerationDone("", "stop", Usage(), (1, 2), (7, 8, 9), num_written=3)

    assert 2 + 1 == unique(first, done((1, 2, 7, 8, 9, 3), ()))


def test_a_generation_that_was_cut_is_spent_and_flagged() -> None:
    book = AccountBook()
    book.enter(GenerationDone("", "stop", Usage(3, 3, 0, 2), (1, 2, 3), (7, 8)))
    book.enter_cut(GenerationCut(Usage(4, 1, 3, 5), (1, 2, 3, 4), (7, 8, 9), 2))

    total = book.total(BackendStatistics(), 0.0)

    assert (4, 3, 7, 5) == (
        total.prefilled_tokens,
        total.reused_tokens,
        total.generated_tokens,
        total.cut_tokens,
    )
    assert 4 == total.unique_prompt_tokens


def test_texts_that_are_scored_count_their_common_beginnings_once() -> None:
    book = AccountBook()
    book.enter_scoring(ScoringDone((), Usage(5, 5), ((1, 2, 5, 6), (1, 2, 5, 7))))

    total = book.total(BackendStatistics(), 0.0)

    assert (5, 5) == (total.unique_prompt_tokens, total.prefilled_tokens)


def test_models_have_books_of_their_own() -> None:
    book = AccountBook()
    book.enter(GenerationDone("", "stop", Usage(2, 2, 0, 1), (1, 2), (3,)))
    book.enter(GenerationDone("", "stop", Usage(2, 2, 0, 4), (1, 2), (3,)), "org/other")

    total = book.total(BackendStatistics(), 0.0)

    assert (4, 4, 5) == (
        total.prefilled_tokens,
        total.unique_prompt_tokens,
        total.generated_tokens,
    )
    assert [(None, 1), ("org/other", 4)] == [
        (one.model, one.generated_tokens) for one in total.models
    ]
