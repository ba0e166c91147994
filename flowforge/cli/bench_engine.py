"""`flowforge bench engine`: tokens a second, beside other engines in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.bench.contestant_process import CONTESTANT_NAMES
from flowforge.cli import bench_options, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.printing import print_note, print_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.bench.contestant_process import ContestantName, ContestantSettings
    from flowforge.bench.engine_suite import EngineSuiteResult
    from flowforge.bench.scenes import Scene
    from flowforge.cli.options import Command


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    words = value.split(",") if value else []
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{value!r} are not whole numbers above 0, as '1,4,16'")
    return tuple(map(int, words))


def _numbers_option(name: str, default: str, what: str) -> Callable[[Command], Command]:
    return click.option(
        name, metavar="N,N", callback=_numbers, default=default, show_default=True, help=what
    )


@click.command
@click.option(
    "--contestant",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice(CONTESTANT_NAMES),
    help="Only this one; may be repeated. flowforge; -int4: rounding to 8 bits as llama.cpp "
    "does, for 4-bit weights; -float32: by torch alone. "
    "transformers-bf16 and -fp32: its model and cache in a bare loop; -batching: its continuous "
    "batching. llama.cpp needs --gguf; -unified keeps common cells of sequences once. Without it "
    "all but flowforge-float32; those that cannot be here are left out.",
)
@click.option(
    "--gguf",
    metavar="FILE",
    type=options.PATH,
    help="A GGUF file, which all contestants then run.",
)
@options.model
@_numbers_option(
    "--streams", "1,4,16,32", "Decode so many streams, each behind a context of its own."
)
@click.option(
    "--context",
    "context_len",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Tokens of those contexts.",
)
@_numbers_option("--prompts", "256,1024", "Read prompts of so many tokens.")
@_numbers_option(
    "--shared",
    "1024",
    "Decode branches behind a prefix of so many tokens that they have in common.",
)
@_numbers_option("--fan-out", "512", "Read a prompt of so many tokens and then write in branches.")
@click.option(
    "--branches",
    "num_branches",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Branches of --shared and --fan-out.",
)
@click.option(
    "--steps",
    "num_steps",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Tokens that each stream writes in a round.",
)
@click.option(
    "--rounds",
    "num_rounds",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Of all scenes, contestants in turn, after one that warms up; figures are medians.",
)
@click.option(
    "--seconds",
    "most_s",
    metavar="S",
    type=options.FiniteRange(min=0),
    default=600.0,
    show_default=True,
    help="Begin no round later than this.",
)
@click.option(
    "--threads",
    "num_threads",
    metavar="N",
    type=click.IntRange(min=1, max=1024),
    help="Threads of every contestant; without it the cores that this process may use.",
)
@bench_options.even_if_busy
@options.as_json
@options.traceback
@guarded
def engine(
    *,
    names: tuple[ContestantName, ...],
    gguf: Path | None,
    model: str | None,
    streams: tuple[int, ...],
    context_len: int,
    prompts: tuple[int, ...],
    shared: tuple[int, ...],
    fan_out: tuple[int, ...],
    num_branches: int,
    num_steps: int,
    num_rounds: int,
    most_s: float,
    num_threads: int | None,
    even_if_busy: bool,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Decode, read prompts and branch, beside other engines in the same run.

    Each contestant runs in a process of its own and sleeps while others are measured. Contexts of
    decoding and of a shared prefix are computed before; a fan-out is timed from its prompt on.
    Numbers in parentheses are cores kept busy. Ratios are printed when the machine was quiet.
    """
    from flowforge.bench.engine_suite import run_engine_suite
    from flowforge.bench.scenes import Scene

    if gguf is not None and model is not None:
        raise click.UsageError("--gguf and --model are both given; give one of them")
    scenes = [
        *(Scene("decode", number, context_len, num_steps) for number in streams),
        *(Scene("shared", num_branches, number, num_steps) for number in shared),
        *(Scene("fan_out", num_branches, number, num_steps) for number in fan_out),
        *(Scene("prefill", 1, number, 1) for number in prompts),
    ]
    if not scenes:
        raise click.UsageError("nothing is to be measured: give --streams, --prompts or --shared")
    wanted = names or tuple(
        name
        for name in CONTESTANT_NAMES
        if name != "flowforge-float32" and (gguf is not None or not name.startswith("llama.cpp"))
    )
    contestants = _contestants(wanted, gguf, model, scenes, num_threads)
    result = run_engine_suite(contestants, scenes, num_rounds, most_s, print_note)
    _print(result, even_if_busy=even_if_busy, as_json=as_json)
    return ExitCode.DONE


def _contestants(
    names: tuple[ContestantName, ...],
    gguf: Path | None,
    model: str | None,
    scenes: list[Scene],
    num_threads: int | None,
) -> list[ContestantSettings]:
    from flowforge.bench.contestant_process import ContestantSettings
    from flowforge.engine.cores import num_usable_cores
    from flowforge.engine.model_store import resolve_model

    if gguf is None and any(name.startswith("llama.cpp") for name in names):
        raise click.UsageError("llama.cpp reads GGUF files only; give --gguf FILE")
    directory = resolve_model(model if gguf is None else str(gguf)).directory
    return [
        ContestantSettings(
            name=name,
            directory=str(directory),
            gguf="" if gguf is None else str(gguf),
            num_threads=num_threads or num_usable_cores(),
            most_streams=max(scene.num_streams for scene in scenes),
            most_tokens=max(scene.prompt_len + scene.num_steps for scene in scenes) + 1,
        )
        for name in names
    ]


def _print(result: EngineSuiteResult, *, even_if_busy: bool, as_json: bool) -> None:
    from flowforge.bench.engine_report import as_json as result_as_json
    from flowforge.bench.engine_report import ratio_table, table
    from flowforge.bench.quiet import machine_line

    may_compare = even_if_busy or result.quietness.is_quiet
    for name, reason in result.left_out.items():
        print_note(f"{name} is left out: {reason}")
    if as_json:
        whole = result_as_json(result, machine_line(), with_ratios=may_compare)
        bench_options.print_record(whole)
        return
    num_rounds = min((len(one.wall_s) for one in result.times), default=0)
    print_text(f"{machine_line()}; medians of {num_rounds}\n{table(result)}")
    if may_compare:
        print_text(f"\n{ratio_table(result)}")
        return
    print_note(
        f"times are not compared: the machine was busy ({result.quietness.words}); --even-if-busy "
        "compares them all the same"
    )
