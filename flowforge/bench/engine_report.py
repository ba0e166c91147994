"""What contestants were measured at, as a table and as JSON."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.bench.contestant_process import ContestantName
    from flowforge.bench.engine_suite import EngineSuiteResult
    from flowforge.bench.scenes import Scene

_NAME_WIDTH = 22


def table(result: EngineSuiteResult) -> str:
    """Tokens a second of each contestant in each scene, and cores that it kept busy."""
    return _aligned(rate_rows(result))


def ratio_table(result: EngineSuiteResult, contestant: ContestantName = "flowforge") -> str:
    """How often as quick one contestant is as each other."""
    return _aligned(ratio_rows(result, contestant))


def rate_rows(result: EngineSuiteResult) -> list[list[str]]:
    """The cells of `table`, the first row those of its head."""
    scenes = _scenes(result)
    rows = [["tokens/s (cores busy)", *(scene.name for scene in scenes)]]
    for name in _contestants(result):
        row: list[str] = [name]
        for scene in scenes:
            times = result.of(name, scene)
            if times is None:
                row.append("-")
                continue
            cores = median(times.cpu_s) / median(times.wall_s)
            row.append(f"{times.tokens_per_s:.1f} ({cores:.1f})")
        rows.append(row)
    return rows


def ratio_rows(
    result: EngineSuiteResult, contestant: ContestantName = "flowforge"
) -> list[list[str]]:
    """The cells of `ratio_table`, the first row those of its head."""
    scenes = _scenes(result)
    rows = [[f"{contestant} over", *(scene.name for scene in scenes)]]
    for name in _contestants(result):
        if name != contestant:
            ratios = [result.ratio(scene, contestant, name) for scene in scenes]
            rows.append([name, *("-" if one is None else f"{one:.2f}x" for one in ratios)])
    return rows


def as_json(result: EngineSuiteResult, machine: str, *, with_ratios: bool) -> Mapping[str, object]:
    """Everything, for programs. with_ratios: whether the times may be compared."""
    quiet = result.quietness
    return {
        "machine": machine,
        "is_quiet": quiet.is_quiet,
        "cpu_share": quiet.cpu_share,
        "others_cores": quiet.others,
        "may_compare_times": with_ratios,
        "left_out": result.left_out,
        "results": [
            {
                "contestant": one.contestant,
                "scene": one.scene.name,
                "kind": one.scene.kind,
                "streams": one.scene.num_streams,
                "prompt": one.scene.prompt_len,
                "steps": one.scene.num_steps,
                "tokens_per_s": one.tokens_per_s,
                "wall_s": one.wall_s,
                "cpu_s": one.cpu_s,
                "ratio": result.ratio(one.scene, "flowforge", one.contestant)
                if with_ratios
                else None,
            }
            for one in result.times
        ],
    }


def _scenes(result: EngineSuiteResult) -> list[Scene]:
    return list(dict.fromkeys(one.scene for one in result.times))


def _contestants(result: EngineSuiteResult) -> list[ContestantName]:
    return list(dict.fromkeys(one.contestant for one in result.times))


def _aligned(rows: list[list[str]]) -> str:
    lines = (
        " ".join([name.ljust(_NAME_WIDTH), *(cell.rjust(16) for cell in cells)]).rstrip()
        for name, *cells in rows
    )
    return "".join(f"{line}\n" for line in lines)
