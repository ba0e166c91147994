"""What may be said: constraints compiled from JSON Schema into token masks."""

if __name__ != "flowforge.grammars":
    raise ImportError(f"import 'flowforge.grammars', not {__name__!r}", name=__name__)

from flowforge.grammars.constraint import CompiledConstraint, ConstraintState
from flowforge.grammars.json_schema import compile_json_schema
from flowforge.grammars.json_text import validate_json
from flowforge.grammars.schema_check import SchemaProblem, check_schema
from flowforge.grammars.vocabulary import Vocabulary

__all__ = [
    "CompiledConstraint",
    "ConstraintState",
    "SchemaProblem",
    "Vocabulary",
    "check_schema",
    "compile_json_schema",
    "validate_json",
]
