"""Sentences of a grammar, drawn at random from lark's compiled rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.compilation import matches
from flowforge.grammars.lark.regex_tree import Branch, Chars, Look, Repeat, Sequence

if TYPE_CHECKING:
    from random import Random

    from flowforge.grammars.lark.character_set import CharacterSet
    from flowforge.grammars.lark.grammar import LarkGrammar
    from flowforge.grammars.lark.regex_tree import Regex
    from flowforge.grammars.lark.symbols import Alternative, Rules

_MAX_TRIES = 40
_MORE_ROUNDS = 3
# So many, and the shortest way to the end is taken.
_MANY_TOKENS = 30
_PLAIN = (range(ord("a"), ord("z") + 1), range(ord("0"), ord("9") + 1), range(0x20, 0x7F))


class Sampler:
    """Draws sentences. depth: of rules, from which on the shortest way to an end is taken."""

    def __init__(self, grammar: LarkGrammar, random: Random, *, depth: int = 12) -> None:
        self._random = random
        self._depth = depth
        self._translation = grammar.translation
        self._matcher = grammar.byte_matcher()
        self._heights = _heights(grammar.translation.rules)

    def sentence(self) -> str | None:
        """A sentence that the mask takes; None where no try gave one.

        Terminals that run into each other are kept apart by ignored text, where there is any.
        """
        for _ in range(_MAX_TRIES):
            tokens = self._tokens()
            for separator in ("", self._separator()):
                text = separator.join(tokens)
                if matches(self._matcher.deep_copy(), text):
                    return text
        return None

    def _separator(self) -> str:
        ignored = self._translation.ignored
        return self._text(self._random.choice(ignored)) if ignored else ""

    def _tokens(self) -> list[str]:
        rules = self._translation.rules
        tokens: list[str] = []
        stack = [(rules.start, 0)]
        while stack:
            symbol, depth = stack.pop()
            if len(tokens) > _MANY_TOKENS:
                depth = self._depth
            if symbol in rules.terminals:
                tokens.append(self._text(symbol))
            else:
                chosen = self._alternative(symbol, depth)
                stack += [(inner, depth + 1) for inner in reversed(chosen)]
        return tokens

    def _alternative(self, rule: str, depth: int) -> Alternative:
        alternatives = self._translation.rules.alternatives[rule]
        if depth < self._depth:
            return self._random.choice(alternatives)
        least = min(self._height(symbols) for symbols in alternatives)
        shortest = [symbols for symbols in alternatives if self._height(symbols) == least]
        return self._random.choice(shortest)

    def _height(self, symbols: Alternative) -> int:
        return max((self._heights[symbol] for symbol in symbols), default=0)

    def _text(self, terminal: str) -> str:
        regex = self._translation.terminals[terminal].regex
        assert regex is not None
        return self._draw(regex)

    def _draw(self, regex: Regex) -> str:
        match regex:
            case Chars(chars):
                return chr(_code(chars, self._random))
            case Sequence(parts):
                return "".join(map(self._draw, parts))
            case Branch(parts):
                return self._draw(self._random.choice(parts))
            case Repeat(part, least, most):
                highest = least + _MORE_ROUNDS if most is None else min(most, least + _MORE_ROUNDS)
                rounds = self._random.randint(least, highest)
                return "".join(self._draw(part) for _ in range(rounds))
            case Look():
                return ""


def _code(chars: CharacterSet, random: Random) -> int:
    """A character, a plain one most of the time."""
    for plain in _PLAIN:
        code = random.choice(plain)
        if code in chars and random.random() < 0.9:
            return code
    low, high = random.choice(chars.ranges)
    return random.randint(low, high)


def _heights(rules: Rules) -> dict[str, int]:
    """For each symbol the least depth of a tree under it."""
    heights = dict.fromkeys(rules.terminals, 0)
    height = 0
    while True:
        height += 1
        more = {
            name: height
            for name, alternatives in rules.alternatives.items()
            if name not in heights
            and any(all(symbol in heights for symbol in one) for one in alternatives)
        }
        if not more:
            return heights
        heights |= more
