"""What may be said: constraints compiled from JSON Schema, regex and choices into token masks."""

if __name__ != "flowforge.grammars":
    raise ImportError(f"import 'flowforge.grammars', not {__name__!r}", name=__name__)

from flowforge.grammars.constraint import CompiledConstraint, ConstraintState
from flowforge.grammars.json_schema import compile_json_schema
from flowforge.grammars.json_text import validate_json
from flowforge.grammars.schema_check import SchemaProblem, check_schema
from flowforge.grammars.text_forms import compile_choice, compile_regex, matches_regex
from flowforge.grammars.vocabulary import Vocabulary

__all__ = [
    "CompiledConstraint",
    "ConstraintState",
    "SchemaProblem",
    "Vocabulary",
    "check_schema",
    "compile_choice",
    "compile_json_schema",
    "compile_regex",
    "matches_regex",
    "validate_json",
]
