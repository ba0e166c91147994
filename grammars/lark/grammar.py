"""A Lark grammar ready for use: what the mask needs of it, and lark as the judge of texts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from flowforge.errors import Location, WorkflowError
from flowforge.grammars.compilation import (
    GrammarRefused,
    build_matcher,
    byte_tokenizer,
    compile_mask_grammar,
    matcher_grammar,
)
from flowforge.grammars.lark.character_set import character_set
from flowforge.grammars.lark.interruption import Interrupted, run_for
from flowforge.grammars.lark.source import LarkSource, LoadedGrammar, Parser, load_grammar
from flowforge.grammars.lark.translation import translate, translate_inner

if TYPE_CHECKING:
    from collections.abc import Callable

    from lark import Token, Transformer, Tree
    from lark.exceptions import UnexpectedInput
    from llguidance import LLMatcher

    from flowforge.grammars.constraint import CompiledConstraint
    from flowforge.grammars.lark.translation import Translation
    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.vocabulary import Vocabulary

T = TypeVar("T")

MAX_LOAD_S = 30.0
MAX_PARSE_S = 30.0
# Of a tree as a value: each of its levels is an object and a list.
MAX_TREE_DEPTH = 90
_SHOWN_CHARS = 40


class LarkGrammar:
    """A user's grammar, translated. Immutable; safe to use from several threads.

    translation: its mask grammar, and how exact that is.
    """

    def __init__(self, loaded: LoadedGrammar, translation: Translation) -> None:
        """Put together what `load_lark` makes."""
        self.loaded = loaded
        self.translation = translation
        # Lark says nowhere that its parsers may be used by two threads at once.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        exact = "exact" if self.translation.is_exact else "approximate"
        return f"LarkGrammar({self.loaded.source.file!r} start={self.loaded.start!r} {exact})"

    def compile(self, vocabulary: Vocabulary) -> CompiledConstraint:
        """Compile the mask. Raises WorkflowError WF431 when it outgrows the mask's limits."""
        try:
            return compile_mask_grammar(self.translation.mask_grammar, vocabulary)
        except GrammarRefused as error:
            raise self._refused(error) from error

    def byte_matcher(self) -> LLMatcher:
        """A matcher of texts without any model. Raises WorkflowError WF431 like `compile`."""
        try:
            return build_matcher(byte_tokenizer(), matcher_grammar(self.translation.mask_grammar))
        except GrammarRefused as error:
            raise self._refused(error) from error

    def mask_without(self, chars: str) -> str:
        """The mask grammar of the texts without these characters, to stand inside another.

        Raises WorkflowError WF431 where every text has one of them.
        """
        excluded = character_set((ord(char), ord(char)) for char in chars)
        is_approximate = not self.translation.is_exact
        return translate_inner(self.loaded, excluded, approximate=is_approximate)

    def parse(self, text: str, *, seconds: float = MAX_PARSE_S) -> Tree[Token]:
        """Parse a finished text with lark.

        Raises WorkflowError: WF433 when the text is not in the grammar, with line and column of
        the text; WF434 when that takes longer.
        """
        return self._judged(text, seconds, lambda tree: tree)

    def transform(
        self, text: str, transformer: Transformer[Any, T], *, seconds: float = MAX_PARSE_S
    ) -> T:
        """Parse a text and transform its tree. Raises like `parse`, and like the transformer."""
        tree = self.parse(text, seconds=seconds)
        return transformer.transform(tree)

    def tree(self, text: str, *, seconds: float = MAX_PARSE_S) -> JsonValue:
        """Parse a text; the tree as a JSON value.

        A rule is {"rule": its name or alias, "children": […]}, a token its text, and a part that
        is absent null. Raises WorkflowError like `parse`, and WF434 for a tree that is too deep.
        """
        return self._judged(text, seconds, _as_json)

    def _judged(self, text: str, seconds: float, use: Callable[[Tree[Token]], T]) -> T:
        from lark.exceptions import UnexpectedInput

        lark = self.loaded.lark
        try:
            with self._lock:
                return run_for(seconds, lambda: use(lark.parse(text)))
        except UnexpectedInput as error:
            raise self._not_in_grammar(error, text) from error
        except (Interrupted, RecursionError, MemoryError) as error:
            is_late = isinstance(error, Interrupted)
            reason = f"took longer than {seconds:g} s" if is_late else "is nested too deep"
            raise WorkflowError(
                "WF434",
                f"parsing {len(text):,} characters {reason}",
                help="make the grammar less ambiguous, set 'parser: lalr', or ask for less text",
            ) from error

    def _not_in_grammar(self, error: UnexpectedInput, text: str) -> WorkflowError:
        # Lark's errors differ in what they carry.
        names = getattr(error, "accepts", None) or getattr(error, "expected", None) or ()
        expected = sorted(self.loaded.shown(str(name)) for name in names)
        line = getattr(error, "line", None)
        is_inside = isinstance(line, int) and line > 0
        where = f"at line {line}, column {error.column}" if is_inside else "at its end"
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
        message = f"the text {shown!r} is not in the grammar: it goes wrong {where}"
        if expected:
            more = ", …" if len(expected) > 8 else ""
            message += f", expected one of {', '.join(expected[:8])}{more}"
        return WorkflowError("WF433", message)

    def _refused(self, error: GrammarRefused) -> WorkflowError:
        return WorkflowError(
            "WF431",
            f"the grammar cannot be masked: {error.reason}",
            location=self.loaded.places.of_rule(self.loaded.start),
            help="make the grammar smaller",
        )


def load_lark(
    source: LarkSource,
    *,
    start: str = "start",
    parser: Parser = "earley",
    approximate: bool = False,
    seconds: float = MAX_LOAD_S,
) -> LarkGrammar:
    """Load and translate a grammar (10 ms to a few seconds; no model is needed).

    approximate: leave out of the mask what it cannot do exactly; lark judges the finished text.
    Raises WorkflowError, with file, line and column: WF430 for a grammar that cannot be read, is
    too large or takes longer than `seconds`, WF431 for one that lark refuses or no text can match,
    WF432 for constructs that cannot be masked exactly.
    """

    def load() -> LarkGrammar:
        loaded = load_grammar(source, start=start, parser=parser)
        return LarkGrammar(loaded, translate(loaded, approximate=approximate))

    try:
        return run_for(seconds, load)
    except Interrupted as error:
        raise WorkflowError(
            "WF430",
            f"reading the grammar took longer than {seconds:g} s",
            location=Location(source.file, 1, 1),
            help="nest fewer options and terminals into each other: each level multiplies them",
        ) from error


def _plain_name(rule: str) -> str:
    """Without the prefix that lark gives to what is imported from a shipped grammar."""
    return rule.split("__", 2)[-1] if rule.startswith("flowforge__") else rule


def _as_json(tree: Tree[Token]) -> JsonValue:
    """Iterative, because a tree may be deeper than Python recurses."""
    from lark import Tree

    root: list[JsonValue] = []
    pending: list[tuple[Any, list[JsonValue], int]] = [(tree, root, 0)]
    while pending:
        node, into, depth = pending.pop()
        if depth > MAX_TREE_DEPTH:
            raise WorkflowError(
                "WF434",
                f"the parse tree is nested deeper than {MAX_TREE_DEPTH} rules",
                help="set 'tree: false' to have the text alone, or write lists with '*' or '+'",
            )
        if isinstance(node, Tree):
            children: list[JsonValue] = []
            into.append({"rule": _plain_name(str(node.data)), "children": children})
            # Last in, first out: pushed in reverse, so that children come in order.
            pending += [(child, children, depth + 1) for child in reversed(node.children)]
        else:
            into.append(None if node is None else str(node))
    return root[0]
