"""What may be said: constraints compiled from JSON Schema, regex and choices into token masks.

Names are imported when they are first used: a check needs one of them, a run the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "flowforge.grammars":
    raise ImportError(f"import 'flowforge.grammars', not {__name__!r}", name=__name__)

if TYPE_CHECKING:
    from flowforge.grammars.constraint import CompiledConstraint, ConstraintState
    from flowforge.grammars.json_options import JsonOptions
    from flowforge.grammars.json_schema import compile_json_schema
    from flowforge.grammars.json_text import validate_json
    from flowforge.grammars.schema_check import SchemaProblem, check_schema
    from flowforge.grammars.text_forms import compile_choice, compile_regex, matches_regex
    from flowforge.grammars.vocabulary import Vocabulary

__all__ = [
    "CompiledConstraint",
    "ConstraintState",
    "JsonOptions",
    "SchemaProblem",
    "Vocabulary",
    "check_schema",
    "compile_choice",
    "compile_json_schema",
    "compile_regex",
    "matches_regex",
    "validate_json",
]

_HOMES = {
    "CompiledConstraint": "constraint",
    "ConstraintState": "constraint",
    "JsonOptions": "json_options",
    "SchemaProblem": "schema_check",
    "Vocabulary": "vocabulary",
    "check_schema": "schema_check",
    "compile_choice": "text_forms",
    "compile_json_schema": "json_schema",
    "compile_regex": "text_forms",
    "matches_regex": "text_forms",
    "validate_json": "json_text",
}


if not TYPE_CHECKING:  # A checker that sees `__getattr__` accepts every name.

    def __getattr__(name: str) -> object:
        """Import a public name from its home."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'flowforge.grammars' has no attribute {name!r}")
        return getattr(import_module(f"flowforge.grammars.{home}"), name)
