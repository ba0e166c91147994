"""What answers to a load come to: percentiles of times, tokens a second, errors, and limits."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flowforge.errors import WorkflowError
from flowforge.language.durations import seconds_of_text
from flowforge.percentiles import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flowforge.bench.load.sending import Sent

PERCENTS = (50, 90, 99)
TIMES = ("ttft", "tpot", "itl", "e2e")
_GOAL = re.compile(r"(ttft|tpot|itl|e2e)_p(50|90|99)=(\S+)|(errors)=(\d+(?:\.\d+)?)%")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In seconds; None of no values."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Those of measurements."""
        if not values:
            return cls(None, None, None)
        return cls(*(round(percentile(values, percent), 6) for percent in PERCENTS))

    def at(self, percent: int) -> float | None:
        """One of them."""
        return {50: self.p50, 90: self.p90, 99: self.p99}[percent]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Of one server under one load.

    ttft: to the first piece; tpot: a token behind it; itl: between pieces; e2e: to the end. Rates
    are a second, of the whole time. cached_share: of prompt tokens.
    """

    server: str
    num_requests: int
    num_failed: int
    wall_s: float
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles
    output_tokens: int
    prompt_tokens: int
    cached_share: float | None
    output_rate: float
    request_rate: float
    errors: Mapping[str, int] = field(default_factory=dict[str, int])
    concurrency: int | None = None

    @property
    def failed_share(self) -> float:
        """Of all requests."""
        return self.num_failed / self.num_requests if self.num_requests else 0.0

    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of a service level: a percentile of a time, or the share of requests that fail.

    most: seconds, or a share. spec: as it was written.
    """

    spec: str
    time: str | None
    percent: int
    most: float

    def is_met(self, figures: LoadFigures) -> bool:
        """Whether a server kept to it; where nothing was measured it did not."""
        if self.time is None:
            return figures.failed_share <= self.most
        percentiles: Percentiles = getattr(figures, self.time)
        value = percentiles.at(self.percent)
        return value is not None and value <= self.most


def read_goal(spec: str) -> Goal:
    """'ttft_p90=500ms' or 'errors=1%'. Raises WorkflowError WF535."""
    match = _GOAL.fullmatch(spec.strip())
    seconds = None if match is None or match[3] is None else seconds_of_text(match[3])
    if match is not None and match[4] is not None:
        return Goal(spec, None, 0, float(match[5]) / 100)
    if match is None or seconds is None:
        raise WorkflowError(
            "WF535",
            f"{spec[:60]!r} is no service level",
            help="write ttft_p90=500ms (ttft, tpot, itl, e2e; p50, p90, p99) or errors=1%",
        )
    return Goal(spec, match[1], int(match[2]), seconds)


def figures_of(server: str, sent: Sent, concurrency: int | None = None) -> LoadFigures:
    """The figures of what was sent. Failed requests have no times."""
    whole = [one for one in sent.samples if one.code is None]
    errors = Counter(one.code for one in sent.samples if one.code is not None)
    prompt_tokens = sum(one.prompt_tokens for one in whole)
    cached = sum(one.cached_tokens for one in whole)
    output_tokens = sum(one.output_tokens for one in whole)
    wall_s = max(sent.wall_s, 1e-9)
    return LoadFigures(
        server=server,
        num_requests=len(sent.samples),
        num_failed=len(sent.samples) - len(whole),
        wall_s=round(sent.wall_s, 6),
        ttft=Percentiles.of([one.ttft_s for one in whole]),
        tpot=Percentiles.of([one.tpot_s for one in whole if one.tpot_s is not None]),
        itl=Percentiles.of([gap for one in whole for gap in one.gaps_s]),
        e2e=Percentiles.of([one.total_s for one in whole]),
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        cached_share=round(cached / prompt_tokens, 4) if prompt_tokens else None,
        output_rate=round(output_tokens / wall_s, 3),
        request_rate=round(len(whole) / wall_s, 4),
        errors=dict(errors),
        concurrency=concurrency,
    )


def table_of(rows: Iterable[LoadFigures]) -> str:
    """A line for each, times in milliseconds."""
    lines = [f"{'':28}{'':>7}{'':>7}" + "".join(f"{name.upper() + ' ms':>30}" for name in TIMES)]
    head = "".join(f"{'p50 / p90 / p99':>30}" for _ in TIMES)
    lines.append(f"{'server':28}{'asked':>7}{'failed':>7}{head}{'tok/s':>10}{'cached':>8}")
    for one in rows:
        name = one.server if one.concurrency is None else f"{one.server} x{one.concurrency}"
        times = "".join(f"{_times(getattr(one, time)):>30}" for time in TIMES)
        cached = "-" if one.cached_share is None else f"{one.cached_share:.0%}"
        counts = f"{one.num_requests:>7,}{one.num_failed:>7,}"
        lines.append(f"{name[-28:]:28}{counts}{times}{one.output_rate:>10,.1f}{cached:>8}")
        if one.errors:
            lines.append("    " + ", ".join(f"{code}: {n:,}" for code, n in one.errors.items()))
    return "".join(f"{line}\n" for line in lines)


def _times(of_time: Percentiles) -> str:
    values = (of_time.p50, of_time.p90, of_time.p99)
    return " / ".join("-" if value is None else f"{value * 1_000:,.1f}" for value in values)
