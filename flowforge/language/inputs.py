"""The values of a program's inputs, from what the caller gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Program


def resolve_inputs(program: Program, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Every input's value: given, else its default.

    A text given for an input that takes no strings, as from a command line (`-i count=3`), is read
    as JSON; a string input takes the text exactly as it is.
    Raises WorkflowError WF301, WF302, WF303.
    """
    raise NotImplementedError
