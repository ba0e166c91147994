"""What `flowforge run` runs, ready to begin on a backend: the program of a file, or a flow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from flowforge.backends.protocol import Backend
    from flowforge.language.program import JsonValue
    from flowforge.runtime.handle import RunHandle
    from flowforge.runtime.people import Asker

    Begin: TypeAlias = Callable[[Backend, Asker], AbstractAsyncContextManager[RunHandle[object]]]


def program_to_begin(
    file: str,
    given: Mapping[str, JsonValue],
    answers: Mapping[str, str],
    seed: int | None,
    *,
    as_json: bool,
    is_quiet: bool,
) -> tuple[Begin, str | None] | None:
    """The program of a workflow file and the model that it names, if it names one.

    None when it has errors, which are told then.

    Raises WorkflowError WF3xx for inputs that do not fit, WF530 for a question that is sure to
    come and that nobody can answer.
    """
    from flowforge.cli.answers import require_answers
    from flowforge.cli.diagnostics import print_diagnostics, print_workflow_errors
    from flowforge.language.inputs import resolve_inputs
    from flowforge.runtime.checking import load_file
    from flowforge.runtime.run import start

    loaded = load_file(file)
    program = loaded.program
    if program is None:
        print_workflow_errors(loaded.diagnostics, as_json=as_json)
        return None
    if not is_quiet:
        print_diagnostics(loaded.diagnostics, sys.stderr)
    values = resolve_inputs(program, given)
    require_answers(program, answers)
    return (
        lambda backend, asker: start(program, values, backend, seed=seed, asker=asker)
    ), program.model


def flow_to_begin(target: str, given: Mapping[str, JsonValue], seed: int | None) -> Begin:
    """The flow that `FILE.py:NAME` names. Raises WorkflowError WF614, WF3xx."""
    from flowforge.flows.execution import start_flow
    from flowforge.flows.loading import load_flow

    flow = load_flow(target)
    values = flow.resolve_inputs(given)
    return lambda backend, asker: start_flow(flow, values, backend, seed=seed, asker=asker)
