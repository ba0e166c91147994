"""Workflow files loaded with all that is known of them checked; imports nothing of a run."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.configuration import configuration_for
from flowforge.language import loader
from flowforge.language.checkers import Checkers
from flowforge.language.schemas import SchemaProblem

if TYPE_CHECKING:
    from flowforge.language.answer_grammars import GrammarProblem
    from flowforge.language.answer_specs import GrammarSpec
    from flowforge.language.diagnostics import Diagnostic
    from flowforge.language.loader import LoadResult
    from flowforge.language.program import JsonValue, Program
    from flowforge.language.schemas import SchemaUse
    from flowforge.patterns import RefusedPattern


def load_file(path: str | Path) -> LoadResult:
    """Load a workflow file with schemas, grammars, regexes and names of models checked too.

    Every problem of the file is a diagnostic. Raises WorkflowError WF537, WF538 for a
    flowforge.toml beside it.
    """
    known = configuration_for(Path(path).parent).names
    return loader.load(path, checkers=Checkers(_check_schema, _check_grammar, known, _check_regex))


def check(path: str | Path) -> tuple[Diagnostic, ...]:
    """All problems of a workflow file, errors and warnings, in file order; () where there are none.

    A file that cannot be read is such a problem. Loads no model. Raises WorkflowError WF537, WF538
    for a flowforge.toml beside it.
    """
    return load_file(path).diagnostics


def load(path: str | Path) -> Program:
    """The checked program of a workflow file, for `run` and `start`, as often as you like.

    Loads no model. Raises DiagnosticsError with every problem, WorkflowError WF537, WF538 for a
    flowforge.toml beside it.
    """
    return loader.require_program(load_file(path))


def _check_schema(schema: JsonValue, use: SchemaUse) -> list[SchemaProblem]:
    return [*_problems_of(json.dumps(schema, ensure_ascii=False), use)]


@functools.lru_cache(maxsize=1024)
def _problems_of(schema: str, use: SchemaUse) -> tuple[SchemaProblem, ...]:
    """By the schema's text: many steps ask for the same form, and compiling it takes a while."""
    from flowforge.grammars import JsonOptions, check_schema
    from flowforge.grammars.schema_check import check_words

    plain = json.loads(schema)
    if use == "judge":
        problems = check_words(plain)
    else:
        problems = check_schema(plain, JsonOptions(on_unsupported=use))
    return tuple(
        SchemaProblem(problem.pointer, problem.message, problem.severity, problem.help)
        for problem in problems
    )


@functools.lru_cache(maxsize=256)
def _check_regex(regex: str) -> RefusedPattern | None:
    from flowforge.grammars.text_forms import why_refused

    return why_refused(regex)


def _check_grammar(spec: GrammarSpec) -> list[GrammarProblem]:
    return [*_problems_of_grammar(spec)]


@functools.lru_cache(maxsize=256)
def _problems_of_grammar(spec: GrammarSpec) -> tuple[GrammarProblem, ...]:
    from flowforge.backends.answer_grammars import check_grammar

    return tuple(check_grammar(spec))
