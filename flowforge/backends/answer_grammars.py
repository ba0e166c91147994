"""Grammars of answers, loaded once each: for the check, for the mask and for the judge."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

from flowforge.errors import WorkflowError
from flowforge.grammars.mask_dialect import MaskGrammar
from flowforge.language.answer_grammars import GrammarProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.grammars.lark.grammar import LarkGrammar
    from flowforge.grammars.lark.source import LarkSource
    from flowforge.grammars.lark.translation import GrammarProblem as TranslationProblem
    from flowforge.language.answer_specs import GrammarSpec
    from flowforge.language.program import JsonValue

_NOT_EXACT = "WF432"

AnswerGrammar: TypeAlias = "LarkGrammar | MaskGrammar"


@functools.lru_cache(maxsize=256)
def load_grammar(spec: GrammarSpec) -> AnswerGrammar:
    """Load a grammar (10 ms to a few seconds; not for the event loop's thread).

    Raises WorkflowError WF430 to WF432.
    """
    from flowforge.grammars.lark.grammar import load_lark

    if spec.dialect == "llguidance":
        return MaskGrammar(spec.text, spec.file)
    return load_lark(
        source_of(spec), start=spec.start, parser=spec.parser, approximate=spec.is_approximate
    )


def lark_grammar(spec: GrammarSpec) -> LarkGrammar:
    """Load a grammar in lark's dialect. Raises like `load_grammar`."""
    from flowforge.grammars.lark.grammar import LarkGrammar

    grammar = load_grammar(spec)
    assert isinstance(grammar, LarkGrammar)
    return grammar


def check_grammar(spec: GrammarSpec) -> list[GrammarProblem]:
    """All problems of a grammar, compiled without any model."""
    try:
        grammar = load_grammar(spec)
        if isinstance(grammar, MaskGrammar):
            grammar.check()
            return []
        grammar.byte_matcher()
    except WorkflowError as error:
        if error.code == _NOT_EXACT:
            return _all_problems(spec)
        return [GrammarProblem(error.code, error.message, error.location, help=error.help)]
    return _listed(grammar.translation.problems)


def value_of_answer(spec: GrammarSpec, text: str) -> JsonValue:
    """The value of an answer: {text, tree} where the grammar asks for a tree, or else the text.

    Raises WorkflowError: WF433 when lark refuses the text, WF434 when it takes too long or its
    tree is too deep.
    """
    from flowforge.grammars.lark.grammar import LarkGrammar

    grammar = load_grammar(spec)
    if not isinstance(grammar, LarkGrammar):
        grammar.judge(text)
        return text
    if spec.has_tree:
        return {"text": text, "tree": grammar.tree(text)}
    grammar.parse(text)
    return text


def source_of(spec: GrammarSpec) -> LarkSource:
    """The grammar's text and where its imports look."""
    from pathlib import Path

    from flowforge.grammars.lark.shipped import shipped_source
    from flowforge.grammars.lark.source import LarkSource

    if spec.is_shipped:
        return shipped_source(spec.file)
    return LarkSource(spec.text, spec.file, None if spec.folder is None else Path(spec.folder))


def _all_problems(spec: GrammarSpec) -> list[GrammarProblem]:
    """Every construct that cannot be masked, where loading tells of the first."""
    from flowforge.grammars.lark.source import load_grammar as load_with_lark
    from flowforge.grammars.lark.translation import find_problems

    loaded = load_with_lark(source_of(spec), start=spec.start, parser=spec.parser)
    return _listed(find_problems(loaded, approximate=spec.is_approximate))


def _listed(problems: Iterable[TranslationProblem]) -> list[GrammarProblem]:
    return [
        GrammarProblem(_NOT_EXACT, one.message, one.location, one.severity, one.help)
        for one in problems
    ]
