"""What the exit codes of `flowforge` mean; scripts may rely on them."""

from __future__ import annotations

from enum import IntEnum

from flowforge.errors import EngineError, FlowForgeError, InternalError


class ExitCode(IntEnum):
    """See MEANINGS."""

    DONE = 0
    RUN_FAILED = 1
    USAGE = 2
    WORKFLOW = 3
    ENGINE = 4
    INTERNAL = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.RUN_FAILED: "the run failed: a step did not come to its value; or what was asked is "
    "not so: runs differ, a plan does not fit or may exceed `--max-prefill`, a grammar does not "
    "take a text, a server is worse than it may be",
    ExitCode.USAGE: "wrong usage, or inputs that do not fit the workflow",
    ExitCode.WORKFLOW: "the workflow file has errors (with `check --strict`: or warnings)",
    ExitCode.ENGINE: "the model, the engine or the journal could not do its work",
    ExitCode.INTERNAL: "a fault in FlowForge: please report it",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.BROKEN_PIPE: "whoever read the output went away",
    ExitCode.TERMINATED: "terminated by SIGTERM; a viewer also by SIGHUP",
}


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
