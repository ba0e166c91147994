"""Grammars compiled into matchers, within limits of size, work and time.

llguidance's own limits end what they count: the work on a regex, the size of a grammar. The time
limit is for what they do not: it cannot stop the work, so it leaves it behind on a thread that
holds no lock, and says so.
"""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from flowforge.grammars.characters import half_of_a_pair
from flowforge.grammars.constraint import CompiledConstraint

if TYPE_CHECKING:
    from collections.abc import Callable

    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from flowforge.grammars.vocabulary import Vocabulary

T = TypeVar("T")

_MAX_SHOWN_CHARS = 200
_PLACE = re.compile(r"(?:at )?(?P<line>\d+)\((?P<column>\d+)\): ")


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What one grammar may cost.

    seconds: until its compiling is given up. max_chars: of its text. max_symbols: of its rules.
    lexer_fuel: work on its regexes, about 50,000 a millisecond. max_lexer_states: of one or two
    kilobytes each, kept by every constraint. step_fuel, step_items: work on one mask, about
    14,000 and 20,000 a millisecond.
    """

    seconds: float = 10.0
    max_chars: int = 4_000_000
    max_symbols: int = 500_000
    lexer_fuel: int = 1_000_000
    max_lexer_states: int = 50_000
    step_fuel: int = 200_000
    step_items: int = 50_000


LIMITS = CompileLimits()


class GrammarRefused(Exception):
    """A grammar that cannot be used. reason: lower case, no full stop, without its place.

    line, column: where in the grammar's own text, from 1, if known.
    """

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column


class GrammarLate(GrammarRefused):
    """A grammar that was not compiled within the time that there is for one."""


def require_characters(text: str) -> None:
    """Raises GrammarRefused for half a surrogate pair, which no text can hold."""
    half = half_of_a_pair(text)
    if half is not None:
        raise GrammarRefused(half)


def compile_mask_grammar(
    source: str, vocabulary: Vocabulary, limits: CompileLimits = LIMITS
) -> CompiledConstraint:
    """Compile a grammar in the mask dialect: llguidance's own variant of Lark.

    Raises GrammarRefused, with line and column of the source where they are known.
    """
    matcher = build_matcher(vocabulary.backend, matcher_grammar(source), limits)
    return CompiledConstraint(matcher, vocabulary)


def matcher_grammar(source: str) -> str:
    """A grammar in the mask dialect as `build_matcher` takes it."""
    return json.dumps({"grammars": [{"lark_grammar": source}]})


def build_matcher(
    tokenizer: LLTokenizer, grammar: str, limits: CompileLimits = LIMITS
) -> LLMatcher:
    """Compile any grammar that llguidance reads. Raises GrammarRefused; never hangs.

    grammar: as `matcher_grammar` or `LLMatcher.grammar_from_…` writes it. The GIL is dropped
    meanwhile.
    """
    if len(grammar) > limits.max_chars:
        raise GrammarRefused(f"{len(grammar):,} characters, expected at most {limits.max_chars:,}")

    def build() -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_parser_limits(limits))
        if not matcher.is_error():
            # What allows nothing, or is past a limit at once, shows itself only now.
            matcher.compute_bitmask()
        return matcher

    matcher = within(limits.seconds, build)
    if matcher.is_error():
        raise _refusal(matcher.get_error())
    return matcher


def within(seconds: float, work: Callable[[], T]) -> T:
    """Work on a thread, waited for. Raises what it raises, GrammarLate when it is not done."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="flowforge-compile", daemon=True).start()
    try:
        return result.result(timeout=seconds)
    except TimeoutError as error:
        raise GrammarLate(f"it took longer than {seconds:g} s to compile") from error


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """A tokenizer whose tokens are the 256 bytes: what matches a text without any model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def matches(matcher: LLMatcher, text: str) -> bool:
    """Whether a matcher of `byte_tokenizer`, at its start, takes all of a text. Uses it up."""
    token_ids = list(text.encode())
    if matcher.validate_tokens(token_ids) < len(token_ids):
        return False
    if token_ids:
        matcher.consume_tokens(token_ids)
    return bool(matcher.is_accepting())


def _parser_limits(limits: CompileLimits) -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=limits.lexer_fuel,
        step_lexer_fuel=limits.step_fuel,
        step_max_items=limits.step_items,
        max_lexer_states=limits.max_lexer_states,
        max_grammar_size=limits.max_symbols,
        # Errors would print the parser's state, and with it the output.
        verbose_errors=False,
    )


def _refusal(message: str) -> GrammarRefused:
    """Read llguidance's message: 'at 3(14): unknown name: "foo"' and lines that show the place."""
    if message.startswith("NoExtension"):
        return GrammarRefused("no text satisfies it")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    place = _PLACE.match(lines[0])
    reason = told[0] if told else lines[0][place.end() if place else 0 :]
    reason = reason[:_MAX_SHOWN_CHARS]
    if place is None:
        return GrammarRefused(reason)
    return GrammarRefused(reason, int(place["line"]), int(place["column"]))
