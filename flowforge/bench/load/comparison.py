"""Figures beside others: two servers, or a server and what it was when a baseline was kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowforge.errors import Location, WorkflowError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.bench.load.figures import LoadFigures

_LOWER_IS_BETTER = tuple(
    f"{time}.{place}" for time in ("ttft", "tpot", "e2e") for place in ("p50", "p90")
)
_HIGHER_IS_BETTER = ("output_rate",)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure beside another. is_worse: by more than is allowed."""

    name: str
    old: float
    new: float
    is_worse: bool

    @property
    def ratio(self) -> float:
        """New over old."""
        return self.new / self.old if self.old else float("inf") if self.new else 1.0


def changes(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> tuple[Change, ...]:
    """Figures in JSON, those that both have. tolerance: a share, as 0.1."""
    found: list[Change] = []
    for name in (*_LOWER_IS_BETTER, *_HIGHER_IS_BETTER):
        before, after = _value(old, name), _value(new, name)
        if before is None or after is None:
            continue
        if name in _HIGHER_IS_BETTER:
            is_worse = after < before * (1 - tolerance)
        else:
            is_worse = after > before * (1 + tolerance)
        found.append(Change(name, before, after, is_worse))
    failed = float(old.get("num_failed", 0)), float(new.get("num_failed", 0))
    found.append(Change("num_failed", *failed, is_worse=failed[1] > failed[0]))
    return tuple(found)


def baseline_text(load: Mapping[str, Any], figures: LoadFigures) -> str:
    """Figures with the load that they are of, as a file that `read_baseline` reads."""
    return json.dumps({"load": dict(load), "figures": figures.as_json()}, indent=2) + "\n"


def read_baseline(path: Path, load: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a baseline.

    Raises WorkflowError WF535 for a file that is none, WF536 for one of another load.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        kept, figures = dict(told["load"]), dict(told["figures"])
    except OSError as error:
        raise _bad_baseline(path, f"it cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise _bad_baseline(path, f"{type(error).__name__}: {error}") from error
    differing = [name for name in {**kept, **load} if kept.get(name) != load.get(name)]
    if differing:
        shown = ", ".join(f"{one} was {kept.get(one)!r}, is {load.get(one)!r}" for one in differing)
        raise WorkflowError(
            "WF536",
            f"the baseline is of another load: {shown}",
            location=Location(str(path), 1, 1),
            help="give the options that it was kept with, or keep a new one with --save",
        )
    return figures


def table_of(found: tuple[Change, ...], old: str, new: str) -> str:
    """A line for each figure; times in milliseconds."""
    lines = [f"{'':14}{old[-18:]:>20}{new[-18:]:>20}{'ratio':>8}"]
    for one in found:
        factor = 1 if one.name in (*_HIGHER_IS_BETTER, "num_failed") else 1_000
        values = f"{one.old * factor:>20,.1f}{one.new * factor:>20,.1f}"
        worse = "  worse" if one.is_worse else ""
        lines.append(f"{one.name:14}{values}{one.ratio:>8.2f}{worse}")
    return "".join(f"{line}\n" for line in lines)


def _value(figures: Mapping[str, Any], name: str) -> float | None:
    value: Any = figures
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _bad_baseline(path: Path, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF535",
        f"the baseline cannot be used: {reason}",
        location=Location(str(path), 1, 1),
        help="keep one with 'flowforge bench serve … --save FILE'",
    )
