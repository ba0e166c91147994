"""What looks into the forms of answers of a workflow file; the language itself cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.language.answer_grammars import GrammarChecker
    from flowforge.language.schemas import SchemaChecker
    from flowforge.patterns import RefusedPattern

    RegexChecker: TypeAlias = Callable[[str], RefusedPattern | None]


@dataclass(frozen=True, slots=True)
class Checkers:
    """None leaves schemas, or grammars, or names of models elsewhere, unchecked.

    models: names as `remote/big` that the configuration beside the file has. regex: says why no
    mask keeps a regex; without it, Python says what is wrong with one.
    """

    schema: SchemaChecker | None = None
    grammar: GrammarChecker | None = None
    models: frozenset[str] | None = None
    regex: RegexChecker | None = None


NO_CHECKERS = Checkers()
