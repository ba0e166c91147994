"""Latencies over the number of requests at a time, or of one load, as a picture (SVG)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from flowforge.bench.load.figures import PERCENTS, TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.bench.load.figures import LoadFigures

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 340, 200, 60, 36, 90


def chart_of(rows: Sequence[LoadFigures]) -> str:
    """A panel for each time, a line for each percentile over the rows; milliseconds from 0."""
    parts: list[str] = []
    for idx, time in enumerate(TIMES):
        x = _LEFT + idx % 2 * (_WIDTH + _GAP)
        y = _TOP + idx // 2 * (_HEIGHT + _GAP)
        parts += _panel(rows, time, x, y)
    width, height = 2 * (_WIDTH + _GAP) + 20, 2 * (_HEIGHT + _GAP) + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="11">', *parts, "</svg>", ""])


def _panel(rows: Sequence[LoadFigures], time: str, left: int, top: int) -> list[str]:
    series = {
        percent: [
            (value or 0.0) * 1_000 for value in (getattr(one, time).at(percent) for one in rows)
        ]
        for percent in PERCENTS
    }
    highest = max((max(values) for values in series.values() if values), default=0.0) or 1.0
    bottom, step = top + _HEIGHT, _WIDTH / max(1, len(rows) - 1)
    parts = [
        f'<text x="{left}" y="{top - 8}" font-size="13">{time.upper()}, ms</text>',
        f'<path d="M{left} {top}V{bottom}H{left + _WIDTH}" fill="none" stroke="#aaa"/>',
        f'<text x="{left - 6}" y="{top + 8}" text-anchor="end">{highest:,.0f}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for idx, one in enumerate(rows):
        name = one.server if one.concurrency is None else f"{one.concurrency}"
        x = left + idx * step
        parts.append(
            f'<text x="{x:.0f}" y="{bottom + 14}" text-anchor="middle">{escape(name)}</text>'
        )
    for number, (percent, values) in enumerate(series.items()):
        colour = _COLOURS[number]
        points = [
            (left + idx * step, bottom - value / highest * _HEIGHT)
            for idx, value in enumerate(values)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        label = left + 60 + 50 * number
        parts.append(f'<text x="{label}" y="{top - 8}" fill="{colour}">p{percent}</text>')
    return parts
