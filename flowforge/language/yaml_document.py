"""A text to the tree of its one YAML document, by whichever reader can."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import Diagnostic
from flowforge.language.source import Span
from flowforge.language.yaml_nodes import MAX_VALUES
from flowforge.language.yaml_plain_reader import TooManyValuesError, read_plain

if TYPE_CHECKING:
    from flowforge.language.source import Source
    from flowforge.language.yaml_nodes import MappingNode


@dataclass(slots=True)
class Composed:
    """root: None when the text could not be composed. diagnostics: what was found on the way."""

    root: MappingNode | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list["Diagnostic"])


def read_document(source: Source) -> Composed:
    """The tree; what is not plain, or not right, is left to the thorough reader."""
    try:
        root = read_plain(source.text)
    except TooManyValuesError as error:
        return Composed(diagnostics=[too_many_values(source, error.position)])
    if root is not None:
        return Composed(root)
    # Late: the thorough reader's parser takes a while to import, and most files do without.
    from flowforge.language.yaml_composer import compose

    return compose(source)


def too_many_values(source: Source, position: int) -> Diagnostic:
    """The refusal of a text at the first of its values that is one too many."""
    message = f"the file holds more than {MAX_VALUES:,} values"
    help = "give data as an input, or split the workflow"
    return Diagnostic("WF003", "error", message, source, Span(position, position + 1), help)
