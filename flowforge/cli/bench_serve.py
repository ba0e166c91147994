"""`flowforge bench serve`: load for a server, and what it makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.output_files import require_writable, write_file
from flowforge.cli.printing import print_note, print_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flowforge.backends.remote.server import RemoteServer
    from flowforge.bench.load.figures import Goal, LoadFigures
    from flowforge.bench.load.traffic import Ask

_SHARE = options.FiniteRange(0.0, 1.0)
_COUNT = click.IntRange(min=1)
_ROUNDS = 4


@click.command
@click.argument("url")
@click.option("--model", "-m", metavar="NAME", help="Without it the first that the server lists.")
@click.option("--api-key", metavar="VARIABLE", help="The environment variable with the key.")
@click.option(
    "--requests",
    "num_requests",
    type=_COUNT,
    default=100,
    show_default=True,
    metavar="N",
    help="In all.",
)
@click.option(
    "--concurrency",
    "-c",
    type=_COUNT,
    help="A closed loop: so many at a time, the next when one ends; 8 where nothing else is said.",
)
@click.option(
    "--rate",
    type=options.FiniteRange(min=0.0, min_open=True),
    help="An open loop: so many arrivals a second, Poisson, whatever the server does.",
)
@click.option(
    "--input",
    "input_len",
    metavar="LEN",
    default="256",
    show_default=True,
    help="Words of a prompt: 256, 100-400 or lognormal:256:0.5.",
)
@click.option(
    "--output",
    "output_len",
    metavar="LEN",
    default="64",
    show_default=True,
    help="Tokens of an answer, at most; as for --input.",
)
@click.option(
    "--ignore-eos", "ignores_end", is_flag=True, help="Ask for answers of the whole length."
)
@click.option(
    "--shared", type=_SHARE, default=0.0, help="The share of a prompt that its group has in common."
)
@click.option(
    "--groups", type=_COUNT, default=1, show_default=True, help="How many such prompts there are."
)
@click.option(
    "--json-ratio", type=_SHARE, default=0.0, help="The share of requests for JSON under a schema."
)
@click.option(
    "--replay", metavar="FILE", type=options.PATH, help="What 'flowforge serve --record' wrote."
)
@click.option(
    "--speed",
    type=options.FiniteRange(min=0.0, min_open=True),
    default=1.0,
    help="How fast a recording is replayed: 2 is twice as fast.",
)
@click.option(
    "--slo",
    "slos",
    multiple=True,
    metavar="GOAL",
    help="ttft_p90=500ms, tpot_p50=50ms, errors=1%; may be repeated. Missed, the exit code is 1; "
    "with --sweep the limit is sought at which they are kept.",
)
@click.option(
    "--sweep", metavar="MOST", type=_COUNT, help="Find the concurrency at which --slo is kept."
)
@click.option(
    "--compare", metavar="URL", help="A second server, asked the same in turns with the first."
)
@click.option("--baseline", metavar="FILE", type=options.PATH, help="Fail where it was better.")
@click.option(
    "--tolerance",
    type=_SHARE,
    default=0.1,
    show_default=True,
    help="How much worse than the baseline a figure may be.",
)
@click.option("--save", metavar="FILE", type=options.PATH, help="Keep the figures as a baseline.")
@click.option("--plot", metavar="FILE.svg", type=options.PATH, help="Draw the figures.")
@click.option("--seed", type=int, default=0, help="The same seed asks the same.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=options.FiniteRange(min=0.1),
    default=120.0,
    show_default=True,
    help="For one request.",
)
@options.as_json
@options.traceback
@guarded
def serve(url: str, *, as_json: bool, traceback: bool, **given: Any) -> ExitCode:
    """Load an OpenAI-compatible server (URL up to and with /v1) and measure it.

    TTFT is from the moment at which a request was due to the first piece of its answer, TPOT the
    time a token behind it, ITL between two pieces, E2E to the end.
    """
    import anyio

    from flowforge.bench.load.chart import chart_of

    order = _order(url, given)
    for file in (order.save, order.plot):
        require_writable(file)
    outcome = anyio.run(_measure, order, not as_json)
    if order.plot is not None:
        write_file(order.plot, chart_of(outcome.rows))
    return _tell(order, outcome, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Order:
    """What was asked for. load: what decides the load, as a baseline keeps it."""

    urls: tuple[str, ...]
    model: str | None
    api_key: str | None
    asks: list[Ask]
    concurrency: int | None
    goals: tuple[Goal, ...]
    sweep: int | None
    load: Mapping[str, Any]
    baseline: Mapping[str, Any] | None
    tolerance: float
    save: Path | None
    plot: Path | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Outcome:
    """rows: figures of each server, or of each step of a sweep. limit: of a sweep."""

    rows: list[LoadFigures]
    limit: int | None = None


def _order(url: str, given: Mapping[str, Any]) -> _Order:
    from flowforge.bench.load.comparison import read_baseline
    from flowforge.bench.load.figures import read_goal
    from flowforge.bench.load.traffic import Length, Traffic, recorded

    replay, rate, concurrency = given["replay"], given["rate"], given["concurrency"]
    if rate is not None and replay is not None:
        raise click.UsageError("--rate and --replay are both given; a recording has its own times")
    if given["sweep"] is not None and (rate is not None or replay is not None or given["compare"]):
        raise click.UsageError("--sweep is a closed loop on one server: no --rate, no --replay")
    if given["sweep"] is not None and not given["slos"]:
        raise click.UsageError("--sweep looks for the limit of --slo; give one: ttft_p90=500ms")
    if replay is not None:
        asks = recorded(replay, given["speed"])
    else:
        asks = Traffic(
            given["num_requests"],
            Length(given["input_len"]),
            Length(given["output_len"]),
            given["shared"],
            given["groups"],
            given["json_ratio"],
            rate,
            given["seed"],
            given["ignores_end"],
        ).asks()
    if rate is None and replay is None and concurrency is None:
        concurrency = 8
    kept = ("input_len", "output_len", "ignores_end", "shared", "groups", "json_ratio", "rate")
    load = {name: given[name] for name in (*kept, "seed", "speed")}
    load |= {"requests": len(asks), "concurrency": concurrency, "replay": str(replay or "")}
    baseline = given["baseline"]
    return _Order(
        (url, given["compare"]) if given["compare"] else (url,),
        given["model"],
        given["api_key"],
        asks,
        concurrency,
        tuple(map(read_goal, given["slos"])),
        given["sweep"],
        load,
        None if baseline is None else read_baseline(baseline, load),
        given["tolerance"],
        given["save"],
        given["plot"],
        given["timeout"],
    )


async def _measure(order: _Order, is_told: bool) -> _Outcome:
    from contextlib import AsyncExitStack

    from flowforge.bench.load.figures import figures_of
    from flowforge.bench.load.sending import Sent, send
    from flowforge.bench.load.servers import open_server
    from flowforge.bench.load.sweep import find_limit

    async with AsyncExitStack() as stack:
        servers: list[RemoteServer] = []
        for url in order.urls:
            opened = open_server(url, order.model, order.api_key, order.timeout_s)
            servers.append(await stack.enter_async_context(opened))
            # What is made at the first request is no part of the load.
            await send(servers[-1], order.asks[:1], 1)
        if order.sweep is not None:
            server = servers[0]

            async def measure(number: int) -> LoadFigures:
                sent = await send(server, order.asks, number)
                figures = figures_of(server.model.url, sent, number)
                if is_told:
                    ttft, rate = figures.ttft.p90 or 0.0, figures.output_rate
                    print_note(f"x{number}: TTFT p90 {ttft * 1_000:,.0f} ms, {rate:,.1f} tok/s")
                return figures

            limit, rows = await find_limit(measure, order.goals, order.sweep)
            return _Outcome(rows, limit)
        sent = {server.model.url: Sent() for server in servers}
        for asks, order_now in _turns(order.asks, servers):
            for server in order_now:
                more = await send(server, asks, order.concurrency)
                sent[server.model.url] = sent[server.model.url].and_(more)
    return _Outcome([figures_of(url, all_) for url, all_ in sent.items()])


def _turns(
    asks: list[Ask], servers: list[RemoteServer]
) -> list[tuple[list[Ask], Sequence[RemoteServer]]]:
    """One round for a single server; for two, several, who goes first in turn."""
    if len(servers) == 1:
        return [(asks, servers)]
    from dataclasses import replace

    rounds: list[tuple[list[Ask], Sequence[RemoteServer]]] = []
    size = -(-len(asks) // _ROUNDS)
    for idx in range(0, len(asks), size):
        part = asks[idx : idx + size]
        first_s = part[0].at_s or 0.0
        moved = [one if one.at_s is None else replace(one, at_s=one.at_s - first_s) for one in part]
        rounds.append((moved, servers if len(rounds) % 2 == 0 else servers[::-1]))
    return rounds


def _tell(order: _Order, outcome: _Outcome, *, as_json: bool) -> ExitCode:
    import json

    from flowforge.bench.load import comparison
    from flowforge.bench.load.figures import table_of
    from flowforge.bench.quiet import machine_line

    first = outcome.rows[0]
    missed = [] if order.sweep else [goal.spec for goal in order.goals if not goal.is_met(first)]
    worse = False
    beside: list[tuple[str, str, tuple[comparison.Change, ...]]] = []
    if order.baseline is not None:
        found = comparison.changes(order.baseline, first.as_json(), order.tolerance)
        worse = any(change.is_worse for change in found)
        beside.append(("baseline", "now", found))
    if len(outcome.rows) == 2 and order.sweep is None:
        second = outcome.rows[1]
        found = comparison.changes(first.as_json(), second.as_json(), order.tolerance)
        beside.append((first.server, second.server, found))
    if as_json:
        told = {
            "load": dict(order.load),
            "machine": machine_line(),
            "figures": [row.as_json() for row in outcome.rows],
            "limit": outcome.limit,
            "missed": missed,
            "changes": [
                {"name": one.name, "old": one.old, "new": one.new, "is_worse": one.is_worse}
                for _, _, found in beside
                for one in found
            ],
        }
        print_text(json.dumps(told, indent=2) + "\n")
    else:
        print_text(table_of(outcome.rows))
        for old, new, found in beside:
            print_text("\n" + comparison.table_of(found, old, new))
        if outcome.limit is not None:
            print_text(f"\nkeeps {', '.join(one.spec for one in order.goals)} up to ")
            print_text(f"{outcome.limit} at a time\n")
    if order.save is not None:
        write_file(order.save, comparison.baseline_text(order.load, first))
    for spec in missed:
        print_note(f"missed: {spec}")
    if worse:
        print_note("worse than the baseline")
    has_failed = all(row.num_failed == row.num_requests for row in outcome.rows)
    return ExitCode.RUN_FAILED if missed or worse or has_failed else ExitCode.DONE
