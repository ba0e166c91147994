"""What a terminal matches by longest match is what `re` matches."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.grammars.compilation import build_matcher, byte_tokenizer, matcher_grammar, matches
from flowforge.grammars.lark.automaton import Dfa, language_automaton, match_automaton
from flowforge.grammars.lark.backtracking import may_take_exponential_time
from flowforge.grammars.lark.character_set import class_of_escape, fold_case, single
from flowforge.grammars.lark.elimination import endings_of, is_same_language, regex_of
from flowforge.grammars.lark.match_order import has_one_way
from flowforge.grammars.lark.regex_text import write_regex
from flowforge.grammars.lark.regex_tree import Unsupported, parse_regex

LETTERS = "abc"
TEXTS = ["".join(chars) for length in range(6) for chars in product(LETTERS, repeat=length)]


def _regexes() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(["a", "b", "c", "[ab]", "[^b]", ".", "aa", "ab"])

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeats = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{1,2}", "{2}", "{0,2}?"])
        return st.one_of(
            st.tuples(inner, repeats).map(lambda one: f"(?:{one[0]}){one[1]}"),
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda one: f"(?:{one[0]}|{one[1]})"),
            inner.map(lambda one: f"(?:|{one})"),
        )

    return st.recursive(atoms, extend, max_leaves=6)


def _with_looks() -> st.SearchStrategy[str]:
    look = st.sampled_from(["(?!ab)", "(?=[ab])", "(?!a(?!b))", "(?!c)", "(?=.b)"])
    return st.tuples(look, _regexes(), look, _regexes()).map("".join)


def _longest_match(dfa: Dfa, text: str) -> int | None:
    """The end of the longest match at the start of a text, or None."""
    state: int | None = 0
    found = 0 if 0 in dfa.accepting else None
    for idx, char in enumerate(text):
        state = dfa.next_state(state, ord(char))
        if state in dfa.accepting:
            found = idx + 1
    return found


@settings(max_examples=300)
@given(_regexes())
def test_the_longest_match_is_where_re_ends(pattern: str) -> None:
    regex, compiled = parse_regex(pattern), re.compile(pattern)

    found = match_automaton(regex)

    for text in TEXTS:
        match = compiled.match(text)
        assert _longest_match(found, text) == (None if match is None else match.end()), text


@settings(max_examples=200)
@given(_with_looks())
def test_looks_hold_wherever_they_do_not_reach_behind_the_match(pattern: str) -> None:
    compiled = re.compile(pattern)
    try:
        found = match_automaton(parse_regex(pattern))
    except Unsupported:
        return

    if not found.pending:
        for text in TEXTS:
            match = compiled.match(text)
            assert _longest_match(found, text) == (None if match is None else match.end()), text


@settings(max_examples=150)
@given(_regexes())
def test_an_automaton_written_as_a_regex_has_its_language(pattern: str) -> None:
    found = match_automaton(parse_regex(pattern))

    written = regex_of(found)

    assert written is not None
    assert is_same_language(found, language_automaton(written))
    matcher = build_matcher(
        byte_tokenizer(), matcher_grammar(f"start: T\nT: /{write_regex(written)}|b{{9}}/")
    )
    for text in TEXTS[::7]:
        if text:
            assert matches(matcher.deep_copy(), text) == found.matches(text), text


@settings(max_examples=100)
@given(_regexes())
def test_a_safe_pattern_matches_like_the_original(pattern: str) -> None:
    found = match_automaton(parse_regex(pattern))
    endings = [
        f"(?:{write_regex(ending, 'python')})"
        + ("" if onward is None else f"(?!{write_regex(onward, 'python')})")
        for ending, onward in endings_of(found)
    ]
    safe, compiled = re.compile("|".join(endings)), re.compile(pattern)

    for text in TEXTS:
        one, other = compiled.match(text), safe.match(text)
        assert (one is None) == (other is None)
        assert one is None or other is None or one.end() == other.end(), text


@settings(max_examples=200)
@given(_regexes())
def test_where_there_is_one_way_the_order_does_not_matter(pattern: str) -> None:
    regex = parse_regex(pattern)

    if has_one_way(regex):
        assert is_same_language(match_automaton(regex), language_automaton(regex))
        assert not may_take_exponential_time(regex)


def test_classes_and_case_are_those_of_re() -> None:
    every_char = "".join(map(chr, range(0x110000)))
    for escape in (r"\w", r"\d", r"\s"):
        found = class_of_escape(escape, is_ascii=False)
        matched = {
            char for char in re.findall(escape, every_char) if not "\ud800" <= char <= "\udfff"
        }
        assert matched == {chr(code) for low, high in found.ranges for code in range(low, high + 1)}
    cased = [char for char in every_char if char.lower() != char or char.upper() != char]
    text = "".join(cased)
    for char in cased[::3]:
        folded = fold_case(single(ord(char)), is_ascii=False)
        expected = set(re.findall(re.escape(char), text, re.IGNORECASE)) | {char}
        assert expected == {chr(one) for low, high in folded.ranges for one in range(low, high + 1)}
