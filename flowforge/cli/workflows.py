"""What `flowforge run` runs, ready to begin on a backend: the program of a file, or a flow."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from flowforge.backends.elsewhere import HERE
from flowforge.cli.flow_files import is_flow
from flowforge.runtime.seeds import drawn_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.protocol import Backend
    from flowforge.journal.records import RunBegun
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.handle import RunHandle
    from flowforge.runtime.people import Asker
    from flowforge.runtime.run_journal import RunJournal

    Begin: TypeAlias = Callable[
        [Backend, Asker, RunJournal | None], AbstractAsyncContextManager[RunHandle[object]]
    ]


@dataclass(frozen=True, slots=True)
class Launch:
    """A workflow and its inputs, ready to begin.

    target: what names the workflow, absolute. definitions: see `runtime.definitions`. model: which
    the workflow names. elsewhere: models beyond this machine that it may ask.
    """

    begin: Begin
    workflow: str
    target: str
    inputs: Mapping[str, JsonValue]
    seed: int
    definitions: Mapping[str, str]
    model: str | None = None
    elsewhere: Elsewhere = HERE


def program_to_begin(
    file: str,
    given: Mapping[str, JsonValue],
    answers: Mapping[str, str],
    seed: int | None,
    *,
    as_json: bool,
    is_quiet: bool,
) -> Launch | None:
    """The program of a workflow file; None when it has errors, which are told then.

    Raises WorkflowError WF3xx for inputs that do not fit and secrets that are not there, WF530 for
    a question that is sure to come and that nobody can answer.
    """
    from flowforge.cli.answers import require_answers
    from flowforge.cli.diagnostics import print_diagnostics, print_workflow_errors
    from flowforge.language.inputs import resolve_inputs
    from flowforge.runtime.checking import load_file
    from flowforge.runtime.run_secrets import secrets_of

    loaded = load_file(file)
    program = loaded.program
    if program is None:
        print_workflow_errors(loaded.diagnostics, as_json=as_json)
        return None
    if not is_quiet:
        print_diagnostics(loaded.diagnostics, sys.stderr)
    values = resolve_inputs(program, given)
    # Before anything is written down, and before a model is loaded.
    secrets_of(program, values)
    require_answers(program, answers)
    return _launch(program, values, drawn_seed() if seed is None else seed)


def launch_of(begun: RunBegun, *, as_json: bool) -> Launch | None:
    """The workflow of a run, as it is now; None when it has errors, which are told then."""
    if is_flow(begun.target):
        return flow_to_begin(begun.target, begun.inputs, begun.seed)
    from flowforge.cli.diagnostics import print_workflow_errors
    from flowforge.runtime.checking import load_file
    from flowforge.runtime.run_secrets import secrets_of

    loaded = load_file(begun.target)
    if loaded.program is None:
        print_workflow_errors(loaded.diagnostics, as_json=as_json)
        return None
    secrets_of(loaded.program, begun.inputs)
    return _launch(loaded.program, begun.inputs, begun.seed)


def _launch(program: Program, values: Mapping[str, JsonValue], seed: int) -> Launch:
    from flowforge.runtime.definitions import definitions_of
    from flowforge.runtime.elsewhere import elsewhere_of
    from flowforge.runtime.run import start

    return Launch(
        lambda backend, asker, journal: start(
            program, values, backend, seed=seed, asker=asker, journal=journal
        ),
        program.name,
        str(Path(program.file).absolute()),
        values,
        seed,
        definitions_of(program),
        program.model,
        elsewhere_of(program),
    )


def flow_to_begin(target: str, given: Mapping[str, JsonValue], seed: int | None) -> Launch:
    """The flow that `FILE.py:NAME` names. Raises WorkflowError WF614, WF3xx."""
    from flowforge.flows.execution import secrets_of_flow, start_flow
    from flowforge.flows.loading import load_flow, split_target
    from flowforge.runtime.elsewhere import elsewhere_in

    flow = load_flow(target)
    values = flow.resolve_inputs(given)
    secrets_of_flow(flow, values)
    run_seed = drawn_seed() if seed is None else seed
    file, name = split_target(target)
    path = file.absolute()
    return Launch(
        lambda backend, asker, journal: start_flow(
            flow, values, backend, seed=run_seed, asker=asker, journal=journal
        ),
        flow.name,
        f"{path}:{name}" if name else str(path),
        given,
        run_seed,
        {},
        elsewhere=elsewhere_in(path.parent),
    )
