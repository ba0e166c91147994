"""A JSON Schema compiled into a constraint: compact JSON that cannot be anything else.

Compact means no white space between tokens of JSON: free white space is where small models lose
themselves. Strict means that a keyword which the mask cannot enforce is refused, not ignored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import GrammarRefused, build_matcher
from flowforge.grammars.constraint import CompiledConstraint
from flowforge.grammars.schema_check import check_schema, strict_grammar

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonInput
    from flowforge.grammars.vocabulary import Vocabulary


def compile_json_schema(schema: JsonInput, vocabulary: Vocabulary) -> CompiledConstraint:
    """Compile a schema (a few milliseconds; the GIL is dropped meanwhile).

    Object keys come in the schema's order. What no mask can hold back stays for `validate_json`:
    a key twice where the schema leaves keys open, numbers past a float's range, endless nesting.
    Raises WorkflowError WF411 for a schema that is invalid, too large or not enforceable, with the
    keyword and its JSON pointer.
    """
    for problem in check_schema(schema):
        if problem.severity == "error":
            raise _refused(problem.pointer, problem.message, problem.help)
    try:
        matcher = build_matcher(vocabulary.backend, strict_grammar(json.dumps(schema)))
    except GrammarRefused as refused:
        raise _refused("", refused.reason, None) from refused
    return CompiledConstraint(matcher, vocabulary)


def _refused(pointer: str, message: str, help: str | None) -> WorkflowError:
    where = f" at {pointer!r}" if pointer else ""
    return WorkflowError("WF411", f"JSON schema{where}: {message}", help=help)
