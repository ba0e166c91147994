"""A JSON Schema compiled into a constraint: JSON that cannot be anything else.

Compact by default, without white space between the tokens of JSON: free white space is where small
models lose themselves. A keyword that the mask cannot enforce is refused, or relaxed when asked,
and never ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import GrammarRefused, build_matcher
from flowforge.grammars.constraint import CompiledConstraint
from flowforge.grammars.json_grammar import json_grammars
from flowforge.grammars.json_options import STRICT
from flowforge.grammars.schema_check import SchemaProblem, check_schema, check_words, left_out
from flowforge.grammars.schema_dialect import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.grammars.json_options import JsonOptions
    from flowforge.grammars.schema_dialect import JsonInput
    from flowforge.grammars.vocabulary import Vocabulary


def compile_json_schema(
    schema: JsonInput, vocabulary: Vocabulary, options: JsonOptions = STRICT
) -> CompiledConstraint:
    """Compile a schema (a few milliseconds; the GIL is dropped meanwhile).

    Object keys come in the schema's order. What no mask can hold back stays for `validate_json`:
    a key twice where the schema leaves keys open, numbers past a float's range, endless nesting,
    and the keywords that `options` relax.
    Raises WorkflowError WF411 for a schema that is invalid, too large or not enforceable, with the
    keyword and its JSON pointer.
    """
    _raise_first(check_words(schema))
    reason = GrammarRefused("it has no grammar")
    for grammar in json_grammars(to_plain(schema), options):
        try:
            matcher = build_matcher(vocabulary.backend, grammar.text)
        except GrammarRefused as refused:
            reason = refused
            continue
        if options.on_unsupported == "error":
            _raise_first(left_out(keyword, options) for keyword in grammar.unenforced)
        return CompiledConstraint(matcher, vocabulary)
    # Now that it is known to fail, the check looks for the place.
    _raise_first(check_schema(schema, options))
    raise _refused(SchemaProblem("", reason.reason)) from reason


def _raise_first(problems: Iterable[SchemaProblem]) -> None:
    for problem in problems:
        if problem.severity == "error":
            raise _refused(problem)


def _refused(problem: SchemaProblem) -> WorkflowError:
    where = f" at {problem.pointer!r}" if problem.pointer else ""
    return WorkflowError("WF411", f"JSON schema{where}: {problem.message}", help=problem.help)
