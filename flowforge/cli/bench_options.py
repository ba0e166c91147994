"""What the commands of `flowforge bench` have in common."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.printing import print_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from flowforge.bench.program_calls import Workload
    from flowforge.bench.suite import BenchModel

WORKLOAD_NAMES = (
    *("tot3x3", "tot_deep2x4", "judge6", "react", "genagents", "mmlu5shot", "hellaswag20"),
    *("tips5", "skeleton", "chat_short", "chat_long", "json_fields", "chain_sum", "map_reduce"),
    *("gpts4", "multi_agent_code", "agent_rollout", "kvflow_cycle", "multi_few_shot"),
)
BASELINE_NAMES = (
    *("serial", "batch", "block16", "radix", "flow", "flow-duplicates", "flow-logits"),
    *("flow-order", "flow-next_use", "flow-spared_output", "flow-critical", "flow-last_use"),
    *("flow-window", "flow-shared_reads", "flow-speculation", "flow-preparing"),
    "flow-expecting",
)
SHAPE_NAMES = ("tiny", "small", "smollm2-135m")
"""What --help lists without loading the engine."""

workload_names = click.option(
    "--workload",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice(WORKLOAD_NAMES),
    help=f"Only this one; may be repeated. Of {', '.join(WORKLOAD_NAMES)}.",
)
baseline_names = click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="NAME",
    type=click.Choice(BASELINE_NAMES),
    help="A policy of the same engine; may be repeated. serial: one call at a time, nothing is "
    "used again. batch: continuous batching, nothing is used again. block16: full pages are used "
    "again. radix: every token, prompts that come together are each computed. flow: all there is. "
    "flow-PART: all but duplicates, logits, order, next_use, spared_output, critical, "
    "last_use, window, shared_reads, speculation, preparing or expecting.",
)
shape = click.option(
    "--shape",
    metavar="NAME",
    type=click.Choice(SHAPE_NAMES),
    help=f"Random weights of a shape instead of a model: {', '.join(SHAPE_NAMES)}.",
)
num_programs = click.option(
    "--programs",
    "num_programs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only the first N programs of each workload.",
)
even_if_busy = click.option(
    "--even-if-busy",
    is_flag=True,
    help="Compare times also when other programs took the machine meanwhile.",
)
plot = click.option("--plot", metavar="SVG", type=options.PATH, help="Draw the ratios into a file.")


def named_workloads(names: tuple[str, ...], num_programs: int | None) -> list[Workload]:
    """The workloads of these names, all without one."""
    from flowforge.bench.workloads import WORKLOADS

    workloads = [WORKLOADS[name]() for name in names or WORKLOADS]
    return first_programs(workloads, num_programs)


def first_programs(workloads: list[Workload], num_programs: int | None) -> list[Workload]:
    """The same with the first so many programs only."""
    if num_programs is None:
        return workloads
    return [workload.first_programs(num_programs) for workload in workloads]


def bench_model(shape: str | None, model: str | None) -> AbstractContextManager[BenchModel]:
    """Random weights of a shape, or a model's; there within the block."""
    from flowforge.bench.suite import BenchModel, random_model
    from flowforge.bench.token_text import MOST_IDS

    if shape is not None:
        return random_model(shape)
    from flowforge.engine.model_store import resolve_model
    from flowforge.engine.models.config import read_model_config

    directory: Path = resolve_model(model).directory
    vocab_size = min(read_model_config(directory).vocab_size, MOST_IDS)
    return nullcontext(BenchModel(directory, vocab_size))


def print_record(results: Mapping[str, object]) -> None:
    """What --json prints: results behind the command that found them, the day and the machine."""
    import json
    from datetime import UTC, datetime

    from flowforge.bench.quiet import machine_line

    head = {
        "command": " ".join(["flowforge", *map(_word, sys.argv[1:])]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine_line(),
    }
    print_text(json.dumps(head | dict(results), indent=2, ensure_ascii=False) + "\n")


def _word(word: str) -> str:
    """Files by their names alone: a record is read elsewhere."""
    import shlex
    from pathlib import Path

    return shlex.quote(Path(word).name if Path(word).is_absolute() else word)
