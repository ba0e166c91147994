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
    scenes = _scenes(result)
    lines = [_row("tokens/s (cores busy)", [scene.name for scene in scenes])]
    for name in _contestants(result):
        cells: list[str] = []
        for scene in scenes:
            times = result.of(name, scene)
            if times is None:
                cells.append("-")
                continue
            cores = median(times.cpu_s) / median(times.wall_s)
            cells.append(f"{times.tokens_per_s:.1f} ({cores:.1f})")
        lines.append(_row(name, cells))
    return "".join(f"{line}\n" for line in lines)


def ratio_table(result: EngineSuiteResult, contestant: ContestantName = "flowforge") -> str:
    """How often as quick one contestant is as each other."""
    scenes = _scenes(result)
    lines = [_row(f"{contestant} over", [scene.name for scene in scenes])]
    for name in _contestants(result):
        if name != contestant:
            ratios = [result.ratio(scene, contestant, name) for scene in scenes]
            lines.append(_row(name, ["-" if one is None else f"{one:.2f}x" for one in ratios]))
    return "".join(f"{line}\n" for line in lines)


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


def _row(name: str, cells: list[str]) -> str:
    return " ".join([name.ljust(_NAME_WIDTH), *(cell.rjust(16) for cell in cells)]).rstrip()
