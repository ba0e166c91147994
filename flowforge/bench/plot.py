"""Ratios of times as a picture: SVG, written by hand so that nothing has to be installed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.bench.contestant_process import ContestantName
    from flowforge.bench.engine_suite import EngineSuiteResult
    from flowforge.bench.suite import SuiteResult

_COLOURS = ("#b7b7b7", "#8fb8de", "#5b8dc9", "#e09f5a", "#c04a3a", "#6a9a5b")
_BAR, _GAP, _LEFT, _TOP, _WIDTH = 7, 8, 150, 56, 640
_LEGEND_STEP = 150


@dataclass(frozen=True, slots=True)
class _Bars:
    """A group of bars for each name, a bar for each of `others`; footer: said below them."""

    title: str
    others: Sequence[str]
    groups: Sequence[tuple[str, Sequence[float | None]]]
    footer: str


def ratio_plot(suite: SuiteResult, marked: str = "") -> str:
    """How often as quick each policy is as the first one: a group of bars for each workload.

    marked: what is to be said of the figures before all else. The axis is logarithmic.
    """
    names = list(dict.fromkeys(one.workload for one in suite.results))
    base, *others = suite.baselines
    groups = [(name, [suite.ratio(name, other, base) for other in others]) for name in names]
    groups.append(("geometric mean", [suite.geometric_mean(other, base) for other in others]))
    return _drawn(_Bars(f"{marked}times as quick as {base}", others, groups, suite.machine))


def contestant_plot(
    result: EngineSuiteResult, machine: str, contestant: ContestantName = "flowforge"
) -> str:
    """How often as quick one engine is as each other: a group of bars for each scene."""
    scenes = dict.fromkeys(one.scene for one in result.times)
    names: list[ContestantName] = list(dict.fromkeys(one.contestant for one in result.times))
    others: list[ContestantName] = [name for name in names if name != contestant]
    groups = [
        (scene.name, [result.ratio(scene, contestant, other) for other in others])
        for scene in scenes
    ]
    return _drawn(_Bars(f"{contestant}: times as quick as each other", others, groups, machine))


def _drawn(bars: _Bars) -> str:
    known = [ratio for _, ratios in bars.groups for ratio in ratios if ratio is not None]
    low = min(0, floor(log10(min(known, default=1))))
    high = max(1, ceil(log10(max(known, default=1))))
    group_height = len(bars.others) * _BAR + _GAP
    bottom = _TOP + len(bars.groups) * group_height
    scale = _WIDTH / (high - low)
    size = f'width="{_LEFT + _WIDTH + 60}" height="{bottom + 40}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="16" font-size="13">{escape(bars.title)}</text>',
        *_legend(bars.others),
        *_axis(low, high, scale, bottom),
    ]
    for idx, (name, ratios) in enumerate(bars.groups):
        y = _TOP + idx * group_height
        middle = y + group_height / 2
        parts.append(f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>')
        parts += _group(ratios, y, low, scale)
    parts.append(f'<text x="8" y="{bottom + 32}" fill="#666">{escape(bars.footer)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _legend(others: Sequence[str]) -> list[str]:
    parts: list[str] = []
    for idx, other in enumerate(others):
        x = 8 + _LEGEND_STEP * idx
        parts.append(f'<rect x="{x}" y="28" width="9" height="9" fill="{_colour(idx)}"/>')
        parts.append(f'<text x="{x + 14}" y="37">{escape(other)}</text>')
    return parts


def _axis(low: int, high: int, scale: float, bottom: int) -> list[str]:
    parts: list[str] = []
    for power in range(low, high + 1):
        x = _LEFT + (power - low) * scale
        parts.append(f'<line x1="{x}" y1="{_TOP - 4}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x}" y="{bottom + 14}" text-anchor="middle">{10.0**power:g}x</text>'
        )
    return parts


def _group(ratios: Sequence[float | None], y: float, low: int, scale: float) -> list[str]:
    parts: list[str] = []
    one = _LEFT - low * scale
    for idx, ratio in enumerate(ratios):
        if ratio is None:
            continue
        x, top = one + log10(ratio) * scale, y + idx * _BAR
        parts.append(
            f'<rect x="{min(x, one):.1f}" y="{top}" width="{abs(x - one):.1f}" '
            f'height="{_BAR - 1}" fill="{_colour(idx)}"/>'
        )
        parts.append(
            f'<text x="{max(x, one) + 3:.1f}" y="{top + _BAR - 1}" font-size="7">{ratio:.2f}</text>'
        )
    return parts


def _colour(idx: int) -> str:
    return _COLOURS[idx % len(_COLOURS)]
