"""How texts are counted in tokens: by the tokenizer that a scope of names brings along."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

_CHARS_PER_TOKEN = 8
_WORD = re.compile(r"\S+\s*|\s+")


class TokenMeter(Protocol):
    """Counts tokens of texts, and cuts texts between tokens."""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has."""
        ...

    def cut_text(self, text: str, num_tokens: int) -> str:
        """The longest beginning that has at most so many tokens when it is read by itself.

        Takes time by what it returns, and not by the whole text's length.
        """
        ...


class MeasuredScope(Mapping[str, "JsonValue"]):
    """Names with their values, for expressions that count tokens as well."""

    @property
    def token_meter(self) -> TokenMeter | None:
        """None where nobody counts tokens; filters on tokens then raise WF406."""
        raise NotImplementedError


class WordMeter:
    """The stand-in where there is no model: a token is a word with the white space behind it."""

    def count_tokens(self, text: str) -> int:
        """See `TokenMeter`."""
        return len(_WORD.findall(text))

    def cut_text(self, text: str, num_tokens: int) -> str:
        """See `TokenMeter`."""
        end = 0
        for _, word in zip(range(num_tokens), _WORD.finditer(text), strict=False):
            end = word.end()
        return text[:end]


class EncodingMeter:
    """Counts as an encoder of texts does."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode

    def count_tokens(self, text: str) -> int:
        """See `TokenMeter`."""
        return len(self._encode(text))

    def cut_text(self, text: str, num_tokens: int) -> str:
        """See `TokenMeter`."""
        size = _CHARS_PER_TOKEN * (num_tokens + 1)
        while (count := self.count_tokens(text[:size])) <= num_tokens and size < len(text):
            size *= 2
        if count <= num_tokens:
            return text
        # Tokens come at a nearly even rate, so that a few guesses are enough; should they not, each
        # second one halves what is left.
        short, short_count, long, long_count = 0, 0, min(size, len(text)), count
        is_guess = True
        while long - short > 1:
            rate = (num_tokens - short_count) / (long_count - short_count) if is_guess else 0.5
            middle = min(max(short + round((long - short) * rate), short + 1), long - 1)
            count = self.count_tokens(text[:middle])
            if count <= num_tokens:
                short, short_count = middle, count
            else:
                long, long_count = middle, count
            is_guess = not is_guess
        return text[:short]


class MeasuredNames(MeasuredScope):
    """Names of a mapping, measured."""

    def __init__(self, names: Mapping[str, JsonValue], meter: TokenMeter) -> None:
        self._names = names
        self._meter = meter

    @property
    def token_meter(self) -> TokenMeter:
        """The meter it was made with."""
        return self._meter

    def __getitem__(self, name: str) -> JsonValue:
        """The value of a name."""
        return self._names[name]

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._names)
