"""Figures as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.bench.suite import Result, SuiteResult

_COUNTED = ("workload", "policy", "PA", "KVRA", "pages", "÷ least", "steps", "÷ chain", "preempted")
_TIMED = ("time s", "tok/s", "TTFT ms", "TPOT ms", "host", "÷ bound", "CPU/wall")
_WIDTHS = (17, 18, 7, 6, 6, 8, 6, 8, 10, 8, 8, 8, 8, 6, 8, 9)


def header(*, is_timed: bool) -> str:
    """The names of the columns."""
    return _row((*_COUNTED, *(_TIMED if is_timed else ())))


def line_of(result: Result) -> str:
    """One row of the table."""
    counts, times = result.counts, result.times
    cells = [
        result.workload,
        result.baseline,
        f"{counts.prefill_amplification:.3f}",
        f"{counts.read_amplification:.2f}",
        str(counts.peak_pages),
        f"{counts.peak_pages / max(1, counts.least_pages):.2f}",
        str(counts.num_steps),
        f"{counts.num_steps / max(1, counts.critical_len):.2f}",
        str(counts.num_preemptions),
    ]
    if times is not None:
        cells += [
            f"{times.makespan_s:.2f}",
            f"{times.tokens_per_s:.0f}",
            f"{1e3 * times.ttft_s:.0f}",
            f"{1e3 * times.tpot_s:.1f}",
            f"{100 * times.host_share:.0f} %",
            f"{times.makespan_s / times.bound_s:.2f}",
            f"{times.cpu_s / times.wall_s:.2f}",
        ]
    return _row(cells)


def ratio_lines(suite: SuiteResult, baseline: str) -> list[str]:
    """How often as quick a policy is as each other one: by workload, and all together."""
    names = list(dict.fromkeys(one.workload for one in suite.results))
    others = [name for name in suite.baselines if name != baseline]
    lines: list[str] = []
    for other in others:
        ratios = [suite.ratio(name, baseline, other) for name in names]
        known = [ratio for ratio in ratios if ratio is not None]
        mean = suite.geometric_mean(baseline, other)
        if mean is not None:
            lines.append(
                f"{baseline} over {other}: {mean:.2f}x (geometric mean of {len(known)}; "
                f"from {min(known):.2f}x to {max(known):.2f}x)"
            )
    return lines


def as_json(suite: SuiteResult, *, with_ratios: bool) -> Mapping[str, object]:
    """Everything, for programs. with_ratios: whether the times may be compared."""
    quiet = suite.quietness
    return {
        "machine": suite.machine,
        "is_quiet": quiet.is_quiet,
        "cpu_share": quiet.cpu_share,
        "others_cores": quiet.others,
        "may_compare_times": with_ratios,
        "ratios": _ratios(suite) if with_ratios else {},
        "results": [asdict(one) for one in suite.results],
    }


def _ratios(suite: SuiteResult) -> dict[str, dict[str, float | None]]:
    """How often as quick the last policy is as each other one: by workload, and all together."""
    names = dict.fromkeys(one.workload for one in suite.results)
    *others, last = suite.baselines
    return {
        other: {name: suite.ratio(name, last, other) for name in names}
        | {"geometric mean": suite.geometric_mean(last, other)}
        for other in others
    }


def _row(cells: tuple[str, ...] | list[str]) -> str:
    first = [cell.ljust(width) for cell, width in zip(cells[:2], _WIDTHS[:2], strict=True)]
    rest = [cell.rjust(width) for cell, width in zip(cells[2:], _WIDTHS[2:], strict=False)]
    return " ".join([*first, *rest]).rstrip()
