"""What runs say of the models that routes sent them to: answers, checks, times and errors."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.percentiles import percentile
from flowforge.runtime.events import (
    RequestDelayed,
    ShadowEnded,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepRetried,
    StepRouted,
)

if TYPE_CHECKING:
    from flowforge.backends.protocol import Usage
    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Fact

FAILED_CHECKS = frozenset({"EN406", "WF412", "WF413", "WF433", "WF501", "WF513", "WF603"})
"""Codes by which an answer did not stand a check: of its form, its grammar or its type."""
_FELL_BACK = re.compile(r"fallback: (\S+) failed \[(\w+)\]")


@dataclass(slots=True)
class ModelReport:
    """One model on one route. is_shadow: it answered beside another, seen by nobody.

    requests: sent to it, of which some were answered, failed by `errors`, or were cancelled.
    num_delayed: tries that its server did not take. num_cut: answers cut off at max_tokens.
    ttfts_s, tpots_s: of each answer. likenesses: of its answers to those of the model that it
    shadows.
    """

    route: str
    model: str
    is_shadow: bool
    num_requests: int = 0
    num_answered: int = 0
    num_delayed: int = 0
    num_cut: int = 0
    num_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    ttfts_s: list[float] = field(default_factory=list[float])
    tpots_s: list[float] = field(default_factory=list[float])
    likenesses: list[float] = field(default_factory=list[float])

    @property
    def num_failed_checks(self) -> int:
        """Answers that did not stand a check."""
        return sum(count for code, count in self.errors.items() if code in FAILED_CHECKS)

    def answered(self, usage: Usage, finish_reason: str | None) -> None:
        """One more answer."""
        self.num_answered += 1
        self.num_cut += finish_reason == "length"
        self.num_tokens += usage.generated_tokens
        self.ttfts_s.append(usage.ttft_s)
        if usage.generated_tokens > 1:
            decode_s = usage.total_s - usage.ttft_s
            self.tpots_s.append(decode_s / (usage.generated_tokens - 1))

    def as_json(self) -> dict[str, JsonValue]:
        """Its figures; times in seconds, null where there are none."""
        checked = self.num_answered + self.num_failed_checks
        return {
            "route": self.route,
            "model": self.model,
            "shadow": self.is_shadow,
            "requests": self.num_requests,
            "answered": self.num_answered,
            "errors": dict(self.errors),
            "delayed": self.num_delayed,
            "checks_passed": _share(self.num_answered, checked),
            "cut_off": _share(self.num_cut, self.num_answered),
            "generated_tokens": self.num_tokens,
            "ttft_p50_s": _at(self.ttfts_s, 50),
            "ttft_p90_s": _at(self.ttfts_s, 90),
            "tpot_p50_s": _at(self.tpots_s, 50),
            "tpot_p90_s": _at(self.tpots_s, 90),
            "likeness": _mean(self.likenesses),
        }


class RouteReport:
    """Takes the events of runs in; models in the order in which they were met."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str, bool], ModelReport] = {}
        self._asked: dict[str, ModelReport] = {}

    @property
    def models(self) -> tuple[ModelReport, ...]:
        """Route by route."""
        return tuple(sorted(self._models.values(), key=lambda one: (one.route, one.is_shadow)))

    def begin_run(self) -> None:
        """What follows is of another run."""
        self._asked.clear()

    def take(self, fact: Fact) -> None:
        """One more event."""
        match fact:
            case StepRouted(path, route, model, reason):
                self._take_route(path, route, model, reason)
            case RequestDelayed(path, model) if path in self._asked:
                self._asked[path].num_delayed += 1
            case StepFinished(path, _, finish_reason, usage) if path in self._asked:
                if usage is not None:
                    self._asked[path].answered(usage, finish_reason)
                del self._asked[path]
            case StepFailed(path, code) | StepRetried(path, code) if path in self._asked:
                self._asked.pop(path).errors[code] += 1
            case StepCancelled(path):
                self._asked.pop(path, None)
            case ShadowEnded():
                self._take_shadow(fact)
            case _:
                pass

    def _take_route(self, path: str, route: str, model: str, reason: str) -> None:
        fell = _FELL_BACK.match(reason)
        if fell is not None:
            self._model(route, fell[1]).errors[fell[2]] += 1
        reported = self._asked[path] = self._model(route, model)
        reported.num_requests += 1

    def _take_shadow(self, fact: ShadowEnded) -> None:
        reported = self._model(fact.route, fact.model, is_shadow=True)
        reported.num_requests += 1
        if fact.code is not None:
            reported.errors[fact.code] += 1
        if fact.usage is not None:
            reported.answered(fact.usage, fact.finish_reason)
        if fact.similarity is not None:
            reported.likenesses.append(fact.similarity)

    def _model(self, route: str, model: str, *, is_shadow: bool = False) -> ModelReport:
        key = (route, model, is_shadow)
        return self._models.setdefault(key, ModelReport(*key))


def table_of(reports: tuple[ModelReport, ...]) -> str:
    """The figures as a table; empty without any."""
    if not reports:
        return ""
    head = ("route", "model", "asked", "answered", "checks", "cut", "delayed", "TTFT p50/p90")
    rows: list[tuple[str, ...]] = [(*head, "TPOT p50/p90", "likeness", "errors")]
    for one in reports:
        told = one.as_json()
        errors = ", ".join(f"{code} {count}" for code, count in one.errors.most_common())
        rows.append(
            (
                *(one.route, f"{one.model} (shadow)" if one.is_shadow else one.model),
                *(f"{one.num_requests:,}", f"{one.num_answered:,}"),
                *(_percent(told["checks_passed"]), _percent(told["cut_off"])),
                f"{one.num_delayed:,}",
                f"{_ms(told['ttft_p50_s'])} / {_ms(told['ttft_p90_s'])}",
                f"{_ms(told['tpot_p50_s'])} / {_ms(told['tpot_p90_s'])}",
                *(_percent(told["likeness"]), errors or "-"),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _at(values: list[float], percent: float) -> float | None:
    return round(percentile(values, percent), 6) if values else None


def _percent(share: JsonValue) -> str:
    return f"{share:.0%}" if isinstance(share, float) else "-"


def _ms(seconds: JsonValue) -> str:
    return f"{seconds * 1_000:,.0f} ms" if isinstance(seconds, float) else "-"
