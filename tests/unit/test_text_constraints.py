"""Constraints of choices and regular expressions over the default model's vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import WorkflowError
from flowforge.grammars import Vocabulary, compile_choice, compile_regex, matches_regex

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.grammars import CompiledConstraint

CHOICES = ("a", "ab", "new\nline", 'q"uote', "back\\slash", "Größe", "<|im_end|>", " lead")


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(
        tokenizer.tokenizer_json, eos_ids=tokenizer.eos_ids, vocab_size=tokenizer.vocab_size
    )


def takes(constraint: CompiledConstraint, tokenizer: Tokenizer, text: str) -> bool:
    state = constraint.start()
    try:
        for token_id in tokenizer.encode(text):
            state.advance(token_id)
    except ValueError:
        return False
    return state.is_accepting


@pytest.mark.model
def test_a_choice_takes_exactly_its_texts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    constraint = compile_choice(CHOICES, vocabulary)

    assert all(takes(constraint, tokenizer, text) for text in CHOICES)
    assert not any(takes(constraint, tokenizer, text) for text in ("", "abc", "b", "new", "A"))


@pytest.mark.model
def test_a_choice_of_thousands_of_texts_is_held(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    texts = [f"product {7919 * idx % 100_003:05d} of {idx}" for idx in range(5_000)]
    constraint = compile_choice(texts, vocabulary)

    assert all(takes(constraint, tokenizer, text) for text in (texts[0], texts[2_500], texts[-1]))
    assert not takes(constraint, tokenizer, "product 00000 of 1")


@pytest.mark.model
def test_a_choice_that_is_too_large_is_refused_before_its_first_token(
    vocabulary: Vocabulary,
) -> None:
    with pytest.raises(WorkflowError, match="100000 texts cannot be used") as caught:
        compile_choice([str(idx) for idx in range(100_000)], vocabulary)

    assert "WF415" == caught.value.code
    assert caught.value.help is not None


@pytest.mark.model
def test_a_regex_takes_what_matches_as_a_whole(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    constraint = compile_regex(r"\d{3}-\d+/x", vocabulary)

    assert takes(constraint, tokenizer, "123-45/x")
    assert not any(takes(constraint, tokenizer, text) for text in ("123-45/xx", "x123-4/x", ""))


@pytest.mark.model
def test_a_choice_without_texts_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(WorkflowError, match="at least one text") as caught:
        compile_choice((), vocabulary)

    assert "WF415" == caught.value.code


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a|bc", "bc", True),
        ("a|bc", "ac", False),
        ("", "", True),
        ("a*", "", True),
        ("a", "", False),
        ("ö+", "öö", True),
        (r"x\ny", "x\ny", True),
        ("(a+)+b", "a" * 5000, False),
    ],
)
def test_all_of_a_text_must_match_in_linear_time(
    pattern: str, text: str, *, expected: bool
) -> None:
    assert expected is matches_regex(pattern, text)


@pytest.mark.parametrize("pattern", ["(a", "(?=a)b", r"(a)\1"])
def test_a_pattern_that_no_automaton_can_do_is_refused(pattern: str) -> None:
    with pytest.raises(WorkflowError, match="regex") as caught:
        matches_regex(pattern, "a")

    assert "WF414" == caught.value.code
    assert "look-around" in str(caught.value.help)
