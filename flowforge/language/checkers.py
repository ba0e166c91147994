"""What looks into the schemas and grammars of a workflow file; the language itself cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.language.answer_grammars import GrammarChecker
    from flowforge.language.schemas import SchemaChecker


@dataclass(frozen=True, slots=True)
class Checkers:
    """None leaves schemas, or grammars, or names of models elsewhere, unchecked.

    models: names as `remote/big` that the configuration beside the file has.
    """

    schema: SchemaChecker | None = None
    grammar: GrammarChecker | None = None
    models: frozenset[str] | None = None


NO_CHECKERS = Checkers()
