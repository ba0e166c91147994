"""The load of `bench serve`, and what answers to it come to."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.bench.load.chart import chart_of
from flowforge.bench.load.comparison import baseline_text, changes, read_baseline
from flowforge.bench.load.figures import LoadFigures, figures_of, read_goal, table_of
from flowforge.bench.load.sending import Sample, Sent
from flowforge.bench.load.sweep import find_limit
from flowforge.bench.load.traffic import Length, Traffic, recorded
from flowforge.errors import WorkflowError
from flowforge.percentiles import percentile

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.bench.load.traffic import Ask


def _words(ask: Ask) -> dict[str, list[str]]:
    messages: Any = ask.body["messages"]
    return {one["role"]: one["content"].split() for one in messages}


def test_the_same_seed_asks_the_same_and_another_one_does_not() -> None:
    one, same, other = (Traffic(5, seed=seed).asks() for seed in (1, 1, 2))

    assert one == same
    assert one != other


def test_a_group_shares_its_part_of_the_prompt_and_no_more() -> None:
    asks = Traffic(40, Length("100"), shared=0.75, groups=2).asks()

    prefixes = {" ".join(_words(ask)["system"]) for ask in asks}
    assert 2 == len(prefixes)
    # 25 words of its own, behind a number that no other request has.
    assert {(75, 26)} == {(len(_words(ask)["system"]), len(_words(ask)["user"])) for ask in asks}
    assert 40 == len({" ".join(_words(ask)["user"][:1]) for ask in asks})


def test_lengths_are_as_they_are_said() -> None:
    ranged = Traffic(300, Length("10-20"), Length("lognormal:50:0.5"), seed=3).asks()

    lengths = [len(_words(ask)["user"]) - 1 for ask in ranged]
    outputs = sorted(int(str(ask.body["max_tokens"])) for ask in ranged)
    assert (10, 20) == (min(lengths), max(lengths))
    assert 40 < outputs[150] < 60
    # One in six of a log-normal is below its median by a deviation.
    assert 22 < outputs[50] < 40


def test_arrivals_are_poisson_at_their_rate() -> None:
    asks = Traffic(4_000, Length("1"), Length("1"), rate=20.0).asks()

    times = [ask.at_s or 0.0 for ask in asks]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert times == sorted(times)
    assert 0.047 < mean < 0.053
    # Of an exponential distribution the deviation is the mean.
    assert 0.9 < deviation / mean < 1.1


def test_a_share_asks_for_json() -> None:
    asks = Traffic(400, Length("1"), with_form=0.25).asks()

    assert 70 < sum(ask.has_form for ask in asks) < 130
    assert all(("response_format" in ask.body) == ask.has_form for ask in asks)


def test_a_recording_is_replayed_as_far_apart_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    body = {"model": "m", "stream": False, "messages": [{"role": "user", "content": "hi"}]}
    lines = [
        {"time_s": 5.0, "path": "/v1/chat/completions", "body": {**body, "max_tokens": 3}},
        {"time_s": 3.0, "path": "/v1/chat/completions", "body": body, "usage": None},
        {"time_s": 4.0, "path": "/v1/completions", "body": {}},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    asks = recorded(file, speed=2.0)

    assert [0.0, 1.0] == [ask.at_s for ask in asks]
    assert {"messages", "max_tokens"} == set(asks[1].body)


@pytest.mark.parametrize("text", ["", "{}\n", "no\n", '{"time_s": 1, "path": "/x", "body": {}}\n'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)

    with pytest.raises(WorkflowError, match="WF535"):
        recorded(tmp_path / "r")


@pytest.mark.parametrize("spec", ["", "0", "x", "20-10", "lognormal:5", "-3"])
def test_what_is_no_length_is_refused(spec: str) -> None:
    with pytest.raises(WorkflowError, match="WF535"):
        Traffic(1, Length(spec)).asks()


def _figures(ttft_s: float = 0.1, failed: int = 0) -> LoadFigures:
    answered = Sample(ttft_s, ttft_s + 0.9, (0.3, 0.3, 0.3), 10, 5, 4)
    return figures_of("s", Sent([answered] * 4 + [Sample(code="EN403")] * failed, 2.0))


def test_figures_are_of_what_was_answered() -> None:
    figures = _figures(failed=1)

    assert (5, 1, {"EN403": 1}) == (figures.num_requests, figures.num_failed, figures.errors)
    assert (0.1, 0.3, 0.3, 1.0) == (
        *(figures.ttft.p50, figures.tpot.p90, figures.itl.p99, figures.e2e.p50),
    )
    assert (8.0, 2.0, 0.5) == (figures.output_rate, figures.request_rate, figures.cached_share)
    assert "EN403: 1" in table_of([figures])
    assert table_of([figures_of("none", Sent())]).count("- / - / -") == 4


@pytest.mark.parametrize(
    ("spec", "is_met"),
    [
        ("ttft_p90=150ms", True),
        ("ttft_p50=50ms", False),
        ("tpot_p99=1s", True),
        ("errors=25%", True),
        ("errors=10%", False),
    ],
)
def test_a_goal_is_met_or_missed(spec: str, is_met: bool) -> None:
    assert is_met is read_goal(spec).is_met(_figures(failed=1))


@pytest.mark.parametrize("spec", ["ttft=1s", "ttft_p90=1", "errors=1", "ttft_p42=1s"])
def test_what_is_no_goal_is_refused(spec: str) -> None:
    with pytest.raises(WorkflowError, match="WF535"):
        read_goal(spec)


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 11, 16, 100])
async def test_the_limit_is_found_in_few_measurements(limit: int) -> None:
    measured: list[int] = []

    async def measure(number: int) -> LoadFigures:
        measured.append(number)
        return _figures(ttft_s=0.1 if number <= limit else 0.9)

    found, rows = await find_limit(measure, [read_goal("ttft_p50=500ms")], most=16)

    assert min(limit, 16) == found
    assert len(rows) == len(measured) == len(set(measured)) <= 9


def test_a_baseline_is_of_its_load_and_tells_what_became_worse(tmp_path: Path) -> None:
    load = {"requests": 4, "seed": 0}
    (tmp_path / "b.json").write_text(baseline_text(load, _figures(0.1)))

    kept = read_baseline(tmp_path / "b.json", load)

    same = changes(kept, _figures(0.109).as_json(), tolerance=0.1)
    slower = changes(kept, _figures(0.2).as_json(), tolerance=0.1)
    assert not any(one.is_worse for one in same)
    assert ["ttft.p50", "ttft.p90"] == [one.name for one in slower if one.is_worse][:2]
    failing = changes(kept, _figures(0.1, failed=1).as_json(), tolerance=0.1)
    assert ["num_failed"] == [one.name for one in failing if one.is_worse]
    with pytest.raises(WorkflowError, match=r"WF536.*seed was 0, is 1"):
        read_baseline(tmp_path / "b.json", {**load, "seed": 1})
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(WorkflowError, match="WF535"):
        read_baseline(tmp_path / "b.json", load)


def test_a_chart_has_a_panel_for_each_time() -> None:
    drawn = chart_of([_figures(0.1), _figures(0.2)])

    assert 12 == drawn.count("<polyline")
    assert all(f">{name}, ms<" in drawn for name in ("TTFT", "TPOT", "ITL", "E2E"))


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.5), (90, 3.7), (100, 4.0)])
def test_percentiles_lie_between_values(percent: float, value: float) -> None:
    assert pytest.approx(value) == percentile([4.0, 1.0, 3.0, 2.0], percent)
