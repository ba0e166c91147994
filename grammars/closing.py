"""Short valid endings of an output that has to stop soon.

A search over copies of the matcher goes through whatever the grammar still owes: forced tokens
first, then tokens that close, then short values.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, product
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llguidance import LLMatcher, LLTokenizer

    from flowforge.grammars.vocabulary import Vocabulary

    _Rank: TypeAlias = Callable[[tuple[int, ...]], int]
    _Candidates: TypeAlias = Callable[[LLMatcher, Vocabulary], list[int]]

_MAX_OF_RUN = 2
_BRACKETS = ("}", "]")
# What a value can be at its shortest, and what is owed inside patterns and numbers.
_VALUES = ('""', "0", "{}", "[]", "1", '"', "[", "{", ",", ":", "-", "a", " ")
# All four are allowed inside a JSON string and nowhere else in JSON.
_IN_STRING = ("}", "a", " ", "0")


@dataclass(frozen=True, slots=True)
class ClosingTokens:
    """The tokens of one vocabulary that endings are made of, the most closing first.

    strings: they end a string, with or without what holds it. brackets: they end arrays and
    objects. values: short values and what stands between them. probes: see `_IN_STRING`.
    characters: of printable ASCII, in order; None where a character has no token of its own.
    """

    strings: tuple[int, ...]
    brackets: tuple[int, ...]
    values: tuple[int, ...]
    probes: tuple[int, ...]
    characters: tuple[int | None, ...]


def closing_tokens(tokenizer: LLTokenizer) -> ClosingTokens:
    """Look them up; texts that are not one token are left out."""
    runs = ["".join(run) for length in (3, 2, 1) for run in product(_BRACKETS, repeat=length)]
    ending = ['"' + run for run in runs] + ['"']
    characters = [_id(tokenizer, chr(code)) for code in range(0x20, 0x7F)]
    return ClosingTokens(
        strings=_ids(tokenizer, ending),
        brackets=_ids(tokenizer, runs),
        values=_ids(tokenizer, _VALUES),
        probes=_ids(tokenizer, _IN_STRING),
        characters=tuple(characters),
    )


def find_closing(
    matcher: LLMatcher, vocabulary: Vocabulary, max_tokens: int
) -> tuple[int, ...] | None:
    """Find tokens after which the matcher accepts, at most `max_tokens`; does not change it."""
    nodes = count()
    # Greedy: of the nodes there are, the last one first.
    ways: list[tuple[_Rank, _Candidates, int]] = [
        (lambda _: -next(nodes), _closing_candidates, 64),
        (len, _closing_candidates, 40),
        (_novelty, _all_candidates, 80),
    ]
    for rank, candidates, max_expansions in ways:
        path = _search(matcher, vocabulary, max_tokens, rank, candidates, max_expansions)
        if path is not None:
            return path
    return None


def _ids(tokenizer: LLTokenizer, texts: Iterable[str]) -> tuple[int, ...]:
    found = (_id(tokenizer, text) for text in texts)
    return tuple(token_id for token_id in found if token_id is not None)


def _id(tokenizer: LLTokenizer, text: str) -> int | None:
    token_ids = tokenizer.tokenize_str(text)
    is_one = len(token_ids) == 1 and tokenizer.decode_bytes(token_ids) == text.encode()
    return token_ids[0] if is_one else None


def _search(
    matcher: LLMatcher,
    vocabulary: Vocabulary,
    max_tokens: int,
    rank: _Rank,
    candidates: _Candidates,
    max_expansions: int,
) -> tuple[int, ...] | None:
    """Search among endings, that of the least rank first; each node is a path and its matcher."""
    order = count()
    nodes: list[tuple[int, int, tuple[int, ...], LLMatcher]] = []
    heappush(nodes, (0, next(order), (), matcher.deep_copy()))
    for _ in range(max_expansions):
        if not nodes:
            return None
        _, _, path, state = heappop(nodes)
        path = _take_forced(state, path, vocabulary, max_tokens)
        if state.is_accepting():
            return path if len(path) <= max_tokens else None
        if state.is_error() or len(path) >= max_tokens:
            continue
        # Reversed, because greedy takes the last one.
        for token_id in reversed(candidates(state, vocabulary)):
            child = state.deep_copy()
            child.consume_token(token_id)
            longer = (*path, token_id)
            heappush(nodes, (rank(longer), -next(order), longer, child))
    return None


def _novelty(path: tuple[int, ...]) -> int:
    """The length of a path; a token that it has had before counts for more: it may go round."""
    return 3 * len(path) - 2 * len(set(path))


def _take_forced(
    state: LLMatcher, path: tuple[int, ...], vocabulary: Vocabulary, max_tokens: int
) -> tuple[int, ...]:
    """Take what must come, as long as it is not too long; the path with it."""
    while not state.is_accepting() and len(path) <= max_tokens:
        forced = [one for one in state.compute_ff_tokens() if one not in vocabulary.eos_ids]
        if not forced or state.try_consume_tokens(forced) < len(forced):
            break
        path += tuple(forced)
    return path


def _closing_candidates(state: LLMatcher, vocabulary: Vocabulary) -> list[int]:
    """What is likely to close JSON, the most closing first."""
    tokens = vocabulary.closing_tokens
    in_string = bool(tokens.probes) and all(_allows(state, one) for one in tokens.probes)
    preferred = tokens.strings if in_string else (*tokens.brackets, *tokens.values)
    allowed = [one for one in preferred if _allows(state, one)]
    return allowed or _kinds_of_characters(state, tokens)


def _all_candidates(state: LLMatcher, vocabulary: Vocabulary) -> list[int]:
    """What is likely to lead on inside a name or a pattern too."""
    closing = _closing_candidates(state, vocabulary)
    others = _kinds_of_characters(state, vocabulary.closing_tokens)
    return closing + [one for one in others if one not in closing]


def _allows(state: LLMatcher, token_id: int) -> bool:
    return bool(state.validate_tokens([token_id]) == 1)


def _kinds_of_characters(state: LLMatcher, tokens: ClosingTokens) -> list[int]:
    """Of the characters that may come next, one for each run of neighbours, all of a short run."""
    # Imported here: what only tells of tools and schemas must not bring numpy along.
    import numpy as np

    mask = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
    allowed = np.unpackbits(mask, bitorder="little")
    found: list[int] = []
    run = 0
    for token_id in tokens.characters:
        run = run + 1 if token_id is not None and allowed[token_id] else 0
        if token_id is not None and 0 < run <= _MAX_OF_RUN:
            found.append(token_id)
    return found
