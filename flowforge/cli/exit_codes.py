"""What the exit codes of `flowforge` mean; scripts may rely on them.

0    done
1    the run failed: a step did not come to its value; or a plan does not fit the context, or may
     exceed --max-prefill
2    wrong usage, or inputs that do not fit the workflow
3    the workflow file has errors (with --strict: or warnings)
4    the model, the engine or the journal could not do its work
5    a fault in FlowForge
130  interrupted (Ctrl-C)
141  whoever read the output went away
143  terminated (SIGTERM; a viewer also by SIGHUP)
"""

from __future__ import annotations

from enum import IntEnum

from flowforge.errors import EngineError, FlowForgeError, InternalError


class ExitCode(IntEnum):
    """See the module."""

    DONE = 0
    RUN_FAILED = 1
    USAGE = 2
    WORKFLOW = 3
    ENGINE = 4
    INTERNAL = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


def exit_code_of(error: FlowForgeError) -> ExitCode:
    """The exit code of one error by who must act; run failures are looked at by `exit_code_of_run`.

    An author's error outside a workflow file is one of inputs or options.
    """
    match error:
        case EngineError():
            return ExitCode.ENGINE
        case InternalError():
            return ExitCode.INTERNAL
        case _:
            return ExitCode.USAGE


def exit_code_of_run(causes: tuple[FlowForgeError, ...]) -> ExitCode:
    """The exit code of a run by what its steps failed with: the gravest decides."""
    codes = {exit_code_of(cause) for cause in causes}
    for code in (ExitCode.INTERNAL, ExitCode.ENGINE):
        if code in codes:
            return code
    return ExitCode.RUN_FAILED
