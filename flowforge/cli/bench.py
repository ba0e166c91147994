"""`flowforge bench`: how much the engine computes, reads and waits, beside what others do."""

from __future__ import annotations

import click

from flowforge.cli.bench_engine import engine
from flowforge.cli.bench_figures import figures
from flowforge.cli.bench_page import page
from flowforge.cli.bench_pressure import pressure
from flowforge.cli.bench_serve import serve
from flowforge.cli.bench_workflows import workflows


@click.group
def bench() -> None:
    """Measure the engine on this machine, and servers."""


bench.add_command(engine)
bench.add_command(workflows)
bench.add_command(pressure)
bench.add_command(serve)
bench.add_command(figures)
bench.add_command(page)
