"""Loading, checking and running a workflow in one call each: what `import flowforge` offers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio

from flowforge.language import loader
from flowforge.language.inputs import resolve_inputs
from flowforge.language.program import Program
from flowforge.runtime.checking import load_file as load_file
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.backends.protocol import Backend
    from flowforge.language.diagnostics import Diagnostic
    from flowforge.language.program import JsonValue


def check(path: str | Path) -> tuple[Diagnostic, ...]:
    """All problems of a workflow file, errors and warnings, in file order."""
    return load_file(path).diagnostics


def load(path: str | Path) -> Program:
    """The checked program of a workflow file. Raises DiagnosticsError with every problem."""
    return loader.require_program(load_file(path))


async def run(
    workflow: str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    **inputs: JsonValue,
) -> Mapping[str, JsonValue]:
    """Run a workflow to its outputs.

    backend: stays open afterwards; without one the engine is opened for this run alone, on `model`
    (a directory or a Hugging Face id) or the default model. inputs: by name; an input called
    'backend' or 'model' needs `start`.
    Raises DiagnosticsError, WorkflowError WF3xx, EngineError, RunFailedError.
    """
    program = workflow if isinstance(workflow, Program) else load(workflow)
    values = resolve_inputs(program, inputs)
    async with AsyncExitStack() as stack:
        if backend is None:
            from flowforge.backends.engine import open_engine_backend

            opened: Backend = await stack.enter_async_context(open_engine_backend(model))
        else:
            opened = backend
        running = await stack.enter_async_context(start(program, values, opened))
        return await running.result()


def run_sync(
    workflow: str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    **inputs: JsonValue,
) -> Mapping[str, JsonValue]:
    """`run` for code that has no event loop."""

    async def main() -> Mapping[str, JsonValue]:
        return await run(workflow, backend=backend, model=model, **inputs)

    return anyio.run(main)
