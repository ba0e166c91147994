"""Starting and running a workflow, be it a file, a program or a flow: what `flowforge` offers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast, overload

import anyio

from flowforge.errors import WorkflowError
from flowforge.flows.execution import start_flow
from flowforge.flows.flow import Flow
from flowforge.language.inputs import resolve_inputs
from flowforge.language.program import Program
from flowforge.runtime.checking import load
from flowforge.runtime.elsewhere import elsewhere_in, elsewhere_of
from flowforge.runtime.run import start as start_program

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from contextlib import AbstractAsyncContextManager

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.protocol import Backend
    from flowforge.language.program import JsonValue
    from flowforge.runtime.clock import Clock
    from flowforge.runtime.handle import RunHandle
    from flowforge.runtime.people import Asker

P = ParamSpec("P")
T = TypeVar("T")


@overload
def start(
    workflow: Flow[P, T],
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    clock: Clock | None = None,
    **inputs: object,
) -> AbstractAsyncContextManager[RunHandle[T]]: ...


@overload
def start(
    workflow: str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    clock: Clock | None = None,
    **inputs: object,
) -> AbstractAsyncContextManager[RunHandle[Mapping[str, JsonValue]]]: ...


def start(
    workflow: Flow[P, T] | str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    clock: Clock | None = None,
    **inputs: object,
) -> (
    AbstractAsyncContextManager[RunHandle[T]]
    | AbstractAsyncContextManager[RunHandle[Mapping[str, JsonValue]]]
):
    """Start a workflow, which goes on beside the block.

        async with ff.start(analyst, topic="bicycles") as handle:
            async for event in handle.events(): ...
            report = await handle.result()

    Leaving the block cancels what still runs and returns when every conversation is closed.
    workflow: a flow, a workflow file, or a loaded program. backend: stays open afterwards; without
    one the engine is opened for this run alone, on `model` (a directory or a Hugging Face id) or
    the default model. seed: of everything random; drawn without one. asker: who answers `ask`.
    inputs: by name. Raises DiagnosticsError, WorkflowError WF3xx, EngineError.
    """
    settings = _Settings(backend, model, seed, asker, clock)
    if isinstance(workflow, Flow):
        return _start_flow(workflow, inputs, settings)
    return _start_program(workflow, cast("Mapping[str, JsonValue]", inputs), settings)


@overload
async def run(
    workflow: Flow[P, T],
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    **inputs: object,
) -> T: ...


@overload
async def run(
    workflow: str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    **inputs: object,
) -> Mapping[str, JsonValue]: ...


async def run(
    workflow: Flow[P, T] | str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    **inputs: object,
) -> T | Mapping[str, JsonValue]:
    """Run a workflow to its end: what a flow returns, or the outputs of a file by name.

    Parameters are those of `start`. Raises what `start` raises, and RunFailedError.
    """
    return await _result_of(workflow, inputs, _Settings(backend, model, seed, asker, clock=None))


@overload
def run_sync(
    workflow: Flow[P, T],
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    **inputs: object,
) -> T: ...


@overload
def run_sync(
    workflow: str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    **inputs: object,
) -> Mapping[str, JsonValue]: ...


def run_sync(
    workflow: Flow[P, T] | str | Path | Program,
    /,
    *,
    backend: Backend | None = None,
    model: str | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    **inputs: object,
) -> T | Mapping[str, JsonValue]:
    """`run` for code that has no event loop. Raises WorkflowError WF615 inside of one."""
    if _is_in_a_loop():
        raise WorkflowError(
            "WF615",
            "run_sync is called inside a running event loop",
            help="write 'await flowforge.run(…)' there",
        )

    async def main() -> T | Mapping[str, JsonValue]:
        settings = _Settings(backend, model, seed, asker, clock=None)
        return await _result_of(workflow, inputs, settings)

    return anyio.run(main)


def _is_in_a_loop() -> bool:
    try:
        anyio.get_current_task()
    except anyio.NoEventLoopError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Settings:
    """What is said about a run beside its inputs; see `start`."""

    backend: Backend | None
    model: str | None
    seed: int | None
    asker: Asker | None
    clock: Clock | None

    @asynccontextmanager
    async def open_backend(self, elsewhere: Elsewhere) -> AsyncGenerator[Backend]:
        """The backend that is there, or the engine for as long as the block lasts."""
        if self.backend is not None:
            yield self.backend
            return
        from flowforge.backends.engines import open_engines
        from flowforge.backends.model_set import open_models

        async with open_models(self.model, elsewhere, open_engines) as models:
            yield models


@asynccontextmanager
async def _start_flow(
    flow: Flow[P, T], inputs: Mapping[str, object], settings: _Settings
) -> AsyncGenerator[RunHandle[T]]:
    values = flow.resolve_inputs(inputs)
    async with (
        settings.open_backend(elsewhere_in(Path.cwd())) as backend,
        start_flow(
            flow,
            values,
            backend,
            clock=settings.clock,
            seed=settings.seed,
            asker=settings.asker,
        ) as handle,
    ):
        yield handle


@asynccontextmanager
async def _start_program(
    workflow: str | Path | Program, inputs: Mapping[str, JsonValue], settings: _Settings
) -> AsyncGenerator[RunHandle[Mapping[str, JsonValue]]]:
    program = workflow if isinstance(workflow, Program) else load(workflow)
    values = resolve_inputs(program, inputs)
    async with (
        settings.open_backend(elsewhere_of(program)) as backend,
        start_program(
            program,
            values,
            backend,
            clock=settings.clock,
            seed=settings.seed,
            asker=settings.asker,
        ) as handle,
    ):
        yield handle


async def _result_of(
    workflow: Flow[P, T] | str | Path | Program, inputs: Mapping[str, object], settings: _Settings
) -> T | Mapping[str, JsonValue]:
    if isinstance(workflow, Flow):
        async with _start_flow(workflow, inputs, settings) as flow_run:
            return await flow_run.result()
    given = cast("Mapping[str, JsonValue]", inputs)
    async with _start_program(workflow, given, settings) as program_run:
        return await program_run.result()
