"""docs/performance.md and its pictures, made of recorded runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.bench.engine_report import rate_rows, ratio_rows
from flowforge.bench.engine_suite import EngineSuiteResult
from flowforge.bench.plot import contestant_plot, ratio_plot
from flowforge.bench.result_files import joined
from flowforge.bench.suite import SuiteResult
from flowforge.bench.targets import targets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.bench.contestant_process import ContestantName
    from flowforge.bench.pressure import PressureResult
    from flowforge.bench.result_files import Record
    from flowforge.bench.suite import Result
    from flowforge.bench.targets import Target

PAGE = "performance.md"
_OWN: tuple[ContestantName, ...] = ("flowforge", "flowforge-int4")
_MAIN_HEAD = ("", "measured", "asked", "by `flowforge bench`")
_SUITE_PLOT = "performance-workflows.svg"


def performance_files(records: Sequence[Record], made_by: str) -> dict[str, str]:
    """The page and its pictures by their file names. made_by: the command that writes them."""
    groups = _Groups.of(records)
    parts = [_head(records, made_by)]
    parts += [_engine_part(record, idx) for idx, record in enumerate(groups.engine)]
    if groups.timed:
        parts.append(_timed_part(groups.timed))
    if groups.counted:
        parts.append(_counted_part(groups.counted))
    if groups.pressure:
        parts.append(_pressure_part(groups.pressure))
    files = {PAGE: "\n".join(parts)}
    for idx, record in enumerate(groups.engine):
        found = _engines(record)
        files[_engine_plot(idx)] = contestant_plot(found, _machine([record]), _own(found)[0])
    if groups.timed:
        files[_SUITE_PLOT] = ratio_plot(_suite(groups.timed))
    return files


def main_figures(records: Sequence[Record]) -> str:
    """A short table for README.md: figures, what is asked of them, and their commands."""
    rows = [
        [one.what, one.measured_text, one.asked_text, f"`{one.bench}`"]
        for one in _targets(records)
        if one.is_main
    ]
    return _table(_MAIN_HEAD, rows)


def with_main_figures(page: str, records: Sequence[Record]) -> str | None:
    """A page with the short table in the place of the one that it has; None if it has none."""
    head, *_ = _table(_MAIN_HEAD, []).splitlines()
    before, found, behind = page.partition(f"{head}\n")
    _, end, after = behind.partition("\n\n")
    return f"{before}{main_figures(records)}\n{after}" if found and end else None


@dataclass(frozen=True, slots=True)
class _Groups:
    """Records by what they are of; but for engines, each may hold a part of the workloads."""

    engine: list[Record]
    timed: list[Record]
    counted: list[Record]
    pressure: list[Record]

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Groups:
        groups = cls([], [], [], [])
        for one in records:
            if isinstance(one.found, EngineSuiteResult):
                groups.engine.append(one)
            elif not isinstance(one.found, SuiteResult):
                groups.pressure.append(one)
            elif any(result.times is not None for result in one.found.results):
                groups.timed.append(one)
            else:
                groups.counted.append(one)
        return groups


def _suite(records: Sequence[Record]) -> SuiteResult:
    return joined([one.found for one in records if isinstance(one.found, SuiteResult)])


def _engines(record: Record) -> EngineSuiteResult:
    assert isinstance(record.found, EngineSuiteResult)
    return record.found


def _pressures(records: Sequence[Record]) -> tuple[PressureResult, ...]:
    return tuple(result for one in records if isinstance(one.found, tuple) for result in one.found)


def _targets(records: Sequence[Record]) -> list[Target]:
    groups = _Groups.of(records)
    suites = [_suite(group) for group in (groups.timed, groups.counted) if group]
    engines = [_engines(one) for one in groups.engine]
    pressure = [_pressures(groups.pressure)] if groups.pressure else []
    return targets_of([*suites, *engines, *pressure])


def _head(records: Sequence[Record], made_by: str) -> str:
    targets = _targets(records)
    rows = [
        [
            one.what,
            one.measured_text,
            one.asked_text,
            "yes" if one.is_reached else "**no**",
            f"`{one.bench}`",
        ]
        for one in targets
    ]
    missed = [
        f"- {one.what}: {one.measured_text} where {one.asked_text} is asked"
        for one in targets
        if not one.is_reached
    ]
    said = "Not reached:\n\n" + "\n".join(missed) if missed else "All of it is reached."
    return f"""# Performance

Made by `{made_by}`; do not edit.

Times are of engines, or of policies of one engine, that took turns in one run on one machine:
{_machine(records)}. Another machine has others, which the commands below measure. What is
counted and not timed is the same everywhere. How quick the GPU kernels are has not been measured.

## What is asked, and what is reached

{_table(["", "measured", "asked", "reached", "by `flowforge bench`"], rows)}
{said}
"""


def _own(found: EngineSuiteResult) -> list[ContestantName]:
    """Contestants that others are compared with: FlowForge's, or whoever came first."""
    names: list[ContestantName] = list(dict.fromkeys(one.contestant for one in found.times))
    return [name for name in _OWN if name in names] or names[:1]


def _engine_plot(idx: int) -> str:
    return f"performance-engine{'' if idx == 0 else f'-{idx + 1}'}.svg"


def _engine_part(record: Record, idx: int) -> str:
    found = _engines(record)
    heading = "Beside other engines" if idx == 0 else f"Beside other engines, run {idx + 1}"
    num_rounds = min(len(one.wall_s) for one in found.times)
    ratios = "\n".join(_lined(ratio_rows(found, name)) for name in _own(found))
    left_out = "".join(
        f"- {name} was left out: {reason}.\n" for name, reason in found.left_out.items()
    )
    return f"""## {heading}

Tokens a second, and in parentheses the cores that were kept busy: the default model, medians of
{num_rounds} rounds in which the engines took turns, each in a process of its own that sleeps while
others are measured. {_taken([record])}

![How often as quick the engine is as others]({_engine_plot(idx)})

{_lined(rate_rows(found))}
{ratios}
- *decode N*: N texts go on behind contexts of their own. *shared N×P*: N texts go on behind P
  tokens that they have in common. *fan-out N×P*: a fresh prompt of P tokens is read, and N texts
  go on behind it. *prefill P*: a fresh prompt of P tokens is read.
- All run the same weights. FlowForge and llama.cpp multiply the 4-bit groups of one GGUF file as
  they are stored; transformers has them as bfloat16 or float32. llama.cpp rounds the rows that it
  multiplies by to 8 bits, and so does flowforge-int4; flowforge does not.
- With one text a step is the time in which weights are read. With many it is arithmetic, and behind
  a shared prefix what each text says itself weighs as much as the prefix, which is read once.
- transformers is its model and cache in a bare loop, without what `generate` costs beside it.
  llama.cpp-unified keeps cells that sequences have in common once; where they have none it was not
  asked.
{left_out}"""


def _timed_part(records: Sequence[Record]) -> str:
    suite = _suite(records)
    names = list(dict.fromkeys(one.workload for one in suite.results))
    *others, last = suite.baselines
    rows = [[name, *(_times(suite.ratio(name, last, other)) for other in others)] for name in names]
    means = [_times(suite.geometric_mean(last, other)) for other in others]
    costs = [_cost_row(one) for one in suite.results if one.baseline == last]
    return f"""## Programs of calls, under several policies

{len(names)} workloads of programs that call a model, run as workflows on one engine with one set of
kernels: what differs is what it may share, keep and put in order ([policies and
workloads](bench-workflows.md)). Weights are random and of a small shape, and lengths are divided,
so that it takes minutes; waits for tools are part of the time. {_taken(records)}

![How often as quick each policy is as the first]({_SUITE_PLOT})

{_table([f"{last} over", *others], [*rows, ["**geometric mean**", *means]])}
{_table([last, "time s", "tok/s", "TTFT ms", "TPOT ms", "host", "÷ bound"], costs)}
*host* is the share of the time with something to compute that no forward pass took; *÷ bound* is
the time over what no order of the same steps beats.
"""


def _cost_row(result: Result) -> list[str]:
    times = result.times
    assert times is not None
    return [
        result.workload,
        f"{times.makespan_s:.2f}",
        f"{times.tokens_per_s:,.0f}",
        f"{1e3 * times.ttft_s:.0f}",
        f"{1e3 * times.tpot_s:.1f}",
        f"{100 * times.host_share:.0f} %",
        f"{times.makespan_s / times.bound_s:.2f}",
    ]


def _counted_part(records: Sequence[Record]) -> str:
    rows = [_counted_row(one) for one in _suite(records).results if one.baseline == "flow"]
    heads = ["flow", "PA", "KVRA", "pages", "÷ least", "steps", "÷ chain"]
    return f"""## What is computed, read and held

Counts of the workloads at full length; the same on every machine. {_counted(records)}

{_table(heads, rows)}
*PA* is prompt tokens computed over distinct ones, *KVRA* KV rows read over distinct ones, *÷ least*
pages held over those that the running calls need, *÷ chain* steps over those that the longest
chain of calls takes.
"""


def _counted_row(result: Result) -> list[str]:
    counts = result.counts
    return [
        result.workload,
        f"{counts.prefill_amplification:.3f}",
        f"{counts.read_amplification:.2f}",
        f"{counts.peak_pages:,}",
        f"{counts.peak_pages / max(1, counts.least_pages):.2f}",
        f"{counts.num_steps:,}",
        f"{counts.num_steps / max(1, counts.critical_len):.2f}",
    ]


def _pressure_part(records: Sequence[Record]) -> str:
    flow = [one for one in _pressures(records) if one.baseline == "flow"]
    columns = dict.fromkeys((one.peak_of, one.share) for one in flow)
    cells = {(one.workload, one.peak_of, one.share): _pressure_cell(one) for one in flow}
    rows = [
        [name, *(cells[name, *column] for column in columns)]
        for name in dict.fromkeys(one.workload for one in flow)
    ]
    heads = [f"{peak_of} {100 * share:.0f} %" for peak_of, share in columns]
    num_preempted = sum(one.num_preemptions for one in flow)
    return f"""## With too few KV pages

PA, and how much more that is than with eviction that knows the future of the same accesses
(Bélády's rule), with shares of the pages that running calls held at most (*held*) and of those
that all distinct tokens take (*distinct*). Calls that had to give their pages up while they ran:
{num_preempted:,}. Counts, the same on every machine. {_counted(records)}

{_table(["flow", *heads], rows)}"""


def _pressure_cell(result: PressureResult) -> str:
    return f"{result.prefill_amplification:.2f}, {result.over_clairvoyant:.2f}×"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}×"


def _taken(records: Sequence[Record]) -> str:
    cores = [
        one.found.quietness.others or 0.0 for one in records if not isinstance(one.found, tuple)
    ]
    return (
        f"Taken {_days(records)} on {_machine(records)}; other work took at most "
        f"{max(cores, default=0.0):.2f} cores. {_commands(records)}"
    )


def _counted(records: Sequence[Record]) -> str:
    return f"Counted {_days(records)}. {_commands(records)}"


def _days(records: Sequence[Record]) -> str:
    return "on " + ", ".join(dict.fromkeys(one.date for one in records))


def _machine(records: Iterable[Record]) -> str:
    """Without its load, which is the bench's own work as well."""
    return "; ".join(dict.fromkeys(one.machine.partition(", load ")[0] for one in records))


def _commands(records: Sequence[Record]) -> str:
    """Commands that differ in their workload alone are told once."""
    commands = dict.fromkeys(
        _without_workload(one.command) if len(records) > 1 else one.command for one in records
    )
    said = "\n".join(commands)
    each = "# for each workload, with --workload NAME\n" if len(records) > len(commands) else ""
    return f"The command:\n\n```text\n{each}{said}\n```"


def _without_workload(command: str) -> str:
    before, found, behind = command.partition(" --workload ")
    return f"{before} {behind.partition(' ')[2]}".rstrip() if found else command


def _lined(rows: list[list[str]]) -> str:
    head, *others = rows
    return _table(head, others)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"
