"""Options that several commands have, each declared once."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import click
from click.core import ParameterSource

from flowforge import environment
from flowforge.cli import completers
from flowforge.cli.failures import report
from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., object]")

Display = Literal["auto", "live", "tui", "plain", "log", "json", "none"]
"""How a run is shown while it goes on; see `flowforge run --help`."""

TOOL_FORMAT_NAMES = (
    *("deepseek-r1", "deepseek-v3.1", "function-gemma", "gemma4", "generic", "glm", "gpt-oss"),
    *("granite3", "hermes", "json-list", "kimi-k2", "llama3-json", "mistral", "mistral-args"),
    *("phi4", "pythonic", "qwen3-coder"),
)
"""Of the formats in `flowforge.grammars.tool_formats`, which --help does not load."""

# Whether a file can be read is told by what reads it, with a code and a help line.
PATH = click.Path(path_type=Path)

_AT_LEAST_ONE = click.IntRange(min=1)


class FiniteRange(click.FloatRange):
    """A number in a range, of which NaN and infinity are none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See `click.ParamType.convert`."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
traceback = click.option(
    "--traceback", is_flag=True, help="Show where in FlowForge an error came from."
)
model = click.option(
    "--model",
    "-m",
    metavar="DIR|GGUF|HF_ID",
    shell_complete=completers.models,
    help="A model directory, GGUF file or Hugging Face id; without it the model under the file's "
    "defaults, or the default model.",
)
no_cache = click.option(
    "--no-cache",
    is_flag=True,
    help="Run every step, also those that say 'cache', and keep nothing.",
)
explain_cache = click.option(
    "--explain-cache",
    is_flag=True,
    help="Say of every step with 'cache' whether its result was there, and if not, what differs.",
)
_detach = click.option(
    "--detach", is_flag=True, help="Go on in the background; prints the run's name and returns."
)
_wait_for_answers = click.option(
    "--wait-for-answers",
    "waits_for_answers",
    is_flag=True,
    help="Let a question wait for 'flowforge answer' where nobody sits at a terminal; --detach "
    "does so by itself.",
)
backend = click.option(
    "--backend",
    default="engine",
    metavar="engine|script:FILE.json",
    shell_complete=completers.backends,
    help="Where answers come from: the model in this process, or a JSON file of answers by step "
    "path, with no model loaded.",
)
tool_format = click.option(
    "--tool-format",
    metavar="NAME",
    help="How the model writes tool calls; without it as its chat template does. One of "
    f"{', '.join(TOOL_FORMAT_NAMES)}.",
)
hooks = click.option(
    "--hooks",
    "hook_files",
    multiple=True,
    type=PATH,
    metavar="FILE.py",
    help="Functions that see prompts before and answers after they are written: docs/hooks.md; may "
    "be repeated.",
)
answers = click.option(
    "--answers",
    "answers_file",
    type=PATH,
    metavar="FILE",
    help="A YAML or JSON file of answers by step path.",
)
_one_input = click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input; may be repeated. NAME=@FILE takes the text of a file.",
)
_inputs_file = click.option(
    "--inputs",
    "inputs_file",
    type=PATH,
    metavar="FILE",
    help="A JSON file with an object of inputs.",
)


def inputs(command: Command) -> Command:
    """The options that give a workflow's inputs, as `inputs` and `inputs_file`."""
    return _one_input(_inputs_file(command))


_ENGINE = (
    click.option(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda[:N]",
        help="Where the model is computed: auto takes a GPU where there is one.",
    ),
    click.option(
        "--tp",
        type=_AT_LEAST_ONE,
        default=1,
        metavar="N",
        help="Split the model over N processes, each with its part of every layer; on GPUs one "
        "each.",
    ),
    click.option(
        "--host-cache",
        type=FiniteRange(min=0),
        default=0.0,
        metavar="GIB",
        help="Memory of the machine for KV that does not fit into the pages: it is copied back "
        "instead of computed again.",
    ),
    click.option(
        "--threads",
        "num_threads",
        type=_AT_LEAST_ONE,
        metavar="N",
        help="CPU threads of the engine; without it the cores that it may use.",
    ),
    click.option(
        "--context-len",
        type=_AT_LEAST_ONE,
        metavar="TOKENS",
        help="Load the model for texts of this length; without it for what it knows as it is.",
    ),
    click.option(
        "--kv-memory",
        type=_AT_LEAST_ONE,
        metavar="MB",
        help="Memory for KV pages; without it a quarter of what is free, at most 2 GiB.",
    ),
    click.option(
        "--kv-pages",
        "num_pages",
        type=_AT_LEAST_ONE,
        metavar="N",
        help="An exact number of KV pages, instead of --kv-memory.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "int4", "int8", "float8"]),
        default="auto",
        help="What the model is computed in: as it was published, from the weights as they are "
        "stored where that is quicker (auto), by torch alone (float32, bfloat16), or from few "
        "bits, quicker and not exact (int4, int8: for models with such weights; float8: rounds "
        "all, on a GPU).",
    ),
    click.option(
        "--kernel-rows",
        type=click.IntRange(min=0),
        metavar="N",
        help="Leave products of up to N rows to the engine's own kernels; without it as many as "
        "was measured to be quicker.",
    ),
    click.option(
        "--kv-dtype",
        type=click.Choice(["auto", "float8"]),
        default="auto",
        help="What KV is kept in: as the model is computed, or rounded to float8, in about half "
        "the memory of bfloat16.",
    ),
    click.option(
        "--deterministic",
        "is_deterministic",
        is_flag=True,
        help="The same bits whatever runs beside, was cached or comes back: docs/engine.md.",
    ),
    click.option(
        "--speculation",
        type=click.Choice(["lookup", "off"]),
        default="lookup",
        help="Whether tokens are guessed from what texts repeat, and several checked in one step; "
        "no text changes by it.",
    ),
    click.option(
        "--overlap",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        help="Whether a step is launched before the last one is read; auto does on a GPU. No text "
        "changes by it.",
    ),
    click.option(
        "--graphs",
        type=click.Choice(["auto", "off"]),
        default="auto",
        help="Whether a GPU repeats decode steps as CUDA graphs.",
    ),
    click.option(
        "--draft-model",
        metavar="WHICH",
        help="A smaller model with the same tokens that guesses instead.",
    ),
)


def engine(command: Command) -> Command:
    """The options that say how the engine computes, as `engine`, an `EngineConfig`."""

    @functools.wraps(command)
    def with_engine(*args: Any, **kwargs: Any) -> object:
        from flowforge.engine.config import EngineConfig

        kv_memory, num_pages = kwargs.pop("kv_memory"), kwargs.pop("num_pages")
        if kv_memory is not None and num_pages is not None:
            raise click.UsageError("--kv-memory and --kv-pages exclude each other: give one")
        host_cache = kwargs.pop("host_cache")
        names = (
            "device",
            "tp",
            "num_threads",
            "context_len",
            "dtype",
            "kernel_rows",
            "kv_dtype",
            "is_deterministic",
            "speculation",
            "draft_model",
            "overlap",
            "graphs",
        )
        try:
            kwargs["engine"] = EngineConfig(
                kv_bytes=None if kv_memory is None else kv_memory * 1_000_000,
                num_pages=num_pages,
                host_cache_bytes=int(host_cache * (1 << 30)),
                **{name: kwargs.pop(name) for name in names},
            )
        except FlowForgeError as error:
            # What the command raises itself is told by `guarded`, which is within.
            sys.exit(int(report(error, as_json=bool(kwargs.get("as_json")))))
        return command(*args, **kwargs)

    wrapped: Callable[..., object] = with_engine
    for option in reversed(_ENGINE):
        wrapped = option(wrapped)
    return cast("Command", wrapped)


_display = click.option(
    "--display",
    type=click.Choice(get_args(Display)),
    default="auto",
    envvar=environment.DISPLAY.name,
    show_envvar=True,
    help="How the run is shown: live (redrawn lines), plain (one line per start and end; for "
    "screen readers too), log (the same with times), tui (full screen), json or none. Without it "
    "live in a terminal, else plain.",
)
_json_events = click.option(
    "--json", "as_json", is_flag=True, help="Print every event as a JSON line on stdout."
)
_tui = click.option("--tui", "is_tui", is_flag=True, help="Show the run full screen.")
_quiet = click.option(
    "--quiet", "-q", "is_quiet", is_flag=True, help="No progress and no accounting."
)


def display(command: Command) -> Command:
    """The options that say how a run is shown, as `display`, `as_json` and `is_quiet`.

    The short forms --json, --tui and --quiet are --display json, tui and none.
    """

    @functools.wraps(command)
    def with_display(*args: Any, **kwargs: Any) -> object:
        chosen = cast("Display", kwargs["display"])
        is_tui = kwargs.pop("is_tui")
        given = {"json": kwargs["as_json"], "tui": is_tui, "none": kwargs["is_quiet"]}
        short = next((name for name, is_given in given.items() if is_given), None)
        if short is not None:
            source = click.get_current_context().get_parameter_source("display")
            if chosen != short and source is ParameterSource.COMMANDLINE:
                flag = {"json": "--json", "tui": "--tui", "none": "--quiet"}[short]
                raise click.UsageError(f"{flag} and --display {chosen} exclude each other")
            chosen = cast("Display", short)
        kwargs["display"] = chosen
        kwargs["as_json"] = chosen == "json"
        kwargs["is_quiet"] = kwargs["is_quiet"] or chosen == "none"
        return command(*args, **kwargs)

    return cast("Command", _display(_tui(_json_events(_quiet(with_display)))))


def detached(command: Command) -> Command:
    """To go on in the background, as `detach`, and to keep questions, as `waits_for_answers`."""
    return _detach(_wait_for_answers(command))
