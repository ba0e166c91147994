"""A run and its trace side by side."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from flowforge.task_groups import open_task_group
from flowforge.telemetry.run_spans import RunSpans

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

    from flowforge.runtime.handle import RunHandle


async def trace_run(
    run: RunHandle[object],
    tracer: Tracer,
    *,
    run_id: str | None = None,
    first: Callable[[], int] = lambda: 0,
) -> None:
    """Make the spans of a run from its events, until its end.

    first: gives the number of this process's first event; asked when there are events.
    """
    spans: RunSpans | None = None
    try:
        async for event in run.events():
            if spans is None:
                spans = RunSpans(tracer, time.time_ns, run_id=run_id, first=first())
            spans.take(event)
    finally:
        if spans is not None:
            spans.close()


@asynccontextmanager
async def traced(
    run: RunHandle[object], provider: TracerProvider, run_id: str | None, first: Callable[[], int]
) -> AsyncGenerator[None]:
    """While the block lasts the run is traced; behind it all spans were sent or given up.

    provider: is shut down behind the block.
    """
    try:
        async with open_task_group() as tasks:

            async def follow() -> None:
                await trace_run(run, provider.get_tracer("flowforge"), run_id=run_id, first=first)

            tasks.start_soon(follow)
            try:
                yield
            except Exception:
                tasks.cancel_scope.cancel()
                raise
    finally:
        with anyio.CancelScope(shield=True):
            # Sending blocks; the exporter has a time limit of its own.
            await anyio.to_thread.run_sync(provider.shutdown)
