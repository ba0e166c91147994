"""The workloads of the bench have the shapes that they are known by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.bench.baselines import BASELINES, MAIN_BASELINES
from flowforge.bench.program_calls import (
    Continued,
    Output,
    Segment,
    Workload,
    count_tokens,
    with_unlike_tokens,
)
from flowforge.bench.random_model import SHAPES
from flowforge.bench.traces import read_trace
from flowforge.bench.workloads import WORKLOADS
from flowforge.cli.bench_options import BASELINE_NAMES, SHAPE_NAMES, WORKLOAD_NAMES
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from pathlib import Path

# Programs, calls, prompt tokens, output tokens, distinct prompt tokens: as an independent
# simulation of the same programs has them.
SIMULATED = {
    "tot3x3": (8, 312, 125298, 39175, 4336),
    "tot_deep2x4": (8, 240, 120398, 26264, 4437),
    "judge6": (8, 56, 71147, 5690, 19809),
    "react": (16, 80, 130079, 4464, 6626),
    "genagents": (30, 150, 41576, 930, 16301),
    "mmlu5shot": (200, 200, 170872, 200, 27745),
    "hellaswag20": (40, 160, 274903, 0, 7444),
    "tips5": (8, 80, 17297, 4737, 1292),
    "skeleton": (8, 62, 14019, 3578, 2904),
    "chat_short": (20, 80, 75479, 488, 30358),
    "chat_long": (20, 80, 123930, 29726, 31508),
    "json_fields": (10, 50, 114895, 460, 22893),
    "chain_sum": (4, 48, 54916, 3491, 53224),
    "map_reduce": (4, 68, 73364, 5456, 70976),
    "gpts4": (48, 48, 184145, 13510, 20245),
    "multi_agent_code": (2, 86, 167859, 21237, 28631),
    "agent_rollout": (8, 64, 217088, 8192, 30776),
    "kvflow_cycle": (2, 80, 173952, 5120, 30592),
    "multi_few_shot": (128, 128, 381358, 16384, 27058),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_a_workload_has_as_many_tokens_as_the_simulation(name: str) -> None:
    workload = WORKLOADS[name]()

    counts = count_tokens(workload, with_unlike_tokens(workload))

    shape = (workload.num_programs, len(workload.calls))
    assert SIMULATED[name] == (*shape, counts.prompt, counts.output, counts.unique)
    assert workload.name == name


def test_the_command_names_what_there_is() -> None:
    assert tuple(WORKLOADS) == tuple(SIMULATED) == WORKLOAD_NAMES
    assert tuple(BASELINES) == BASELINE_NAMES
    assert tuple(SHAPES) == SHAPE_NAMES
    assert set(MAIN_BASELINES) <= set(BASELINES)


def test_the_first_programs_of_a_workload_are_whole() -> None:
    whole = WORKLOADS["tips5"]()
    fewer = whole.first_programs(3)

    assert fewer.num_programs == 3
    assert [call.num_output for call in whole.calls if call.program < 3] == [
        call.num_output for call in fewer.calls
    ]
    for call in fewer.calls:
        named = [part.call_idx for part in call.parts if isinstance(part, Output | Continued)]
        assert all(idx < call.idx for idx in (*named, *call.needs))


HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def test_rounds_of_a_trace_go_on_with_their_session(tmp_path: Path) -> None:
    path = tmp_path / "agents.csv"
    path.write_text(HEADER + "a,0,0,100,20,8,250\nb,1.5,0,100,30,8,0\na,0,1,128,10,4,0\n")

    workload = read_trace(path)
    counts = count_tokens(workload, with_unlike_tokens(workload))

    assert [(0, ()), (1, ()), (0, (0,))] == [(one.program, one.needs) for one in workload.calls]
    assert [0.25, 0, 0] == [one.wait_s for one in workload.calls]
    assert workload.calls[1].arrival_s == 1.5
    # 100 in common; 20, 30 and 10 of their own; decoding does not compute its last token.
    assert (120 + 130 + 138, 20, 100 + 20 + 30 + 11) == (
        counts.prompt,
        counts.output,
        counts.unique,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("session_id,input_len\na,1\n", "columns are missing: arrival_time"),
        (HEADER, "it has no rounds"),
        (HEADER + "a,0,0,0,many,8,0\n", "a number was expected"),
        (HEADER + "a,0,0,0,0,8,0\n", "input_len 1 or more"),
        (HEADER + "a,nan,0,0,5,8,0\n", "times are 0 or more"),
        (HEADER + "a,0,0,0,5,8,inf\n", "times are 0 or more"),
        (HEADER + "a,0,0\n", "shorter than the header"),
        (HEADER + "\udcff,0,0,0,5,8,0\n", "it is not UTF-8"),
    ],
)
def test_a_trace_that_is_none_is_told_with_its_place(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(WorkflowError, match=reason) as caught:
        read_trace(path)

    assert caught.value.code == "WF533"
    assert caught.value.location is not None


def test_a_round_goes_on_with_as_much_as_the_trace_says(tmp_path: Path) -> None:
    """The second round's context was cut to 60 tokens; the third goes on with nothing."""
    path = tmp_path / "agents.csv"
    path.write_text(HEADER + "a,0,0,0,100,8,0\na,0,1,60,10,4,0\na,0,2,0,5,4,0\n")

    workload = read_trace(path)
    texts = with_unlike_tokens(workload)

    first, second, third = (texts.prompts[idx] for idx in range(3))
    assert [100, 70, 5] == [len(prompt) for prompt in (first, second, third)]
    assert first[:60] == second[:60]
    assert not {*first, *second} & {*third}


def test_a_scaled_workload_has_the_same_calls_of_divided_lengths() -> None:
    whole = WORKLOADS["react"]()

    scaled = whole.scaled(4, 0.1)

    counts = count_tokens(scaled, with_unlike_tokens(scaled))
    of_whole = count_tokens(whole, with_unlike_tokens(whole))
    assert [call.needs for call in whole.calls] == [call.needs for call in scaled.calls]
    assert 4 * counts.prompt == pytest.approx(of_whole.prompt, rel=0.02)
    assert 4 * counts.unique == pytest.approx(of_whole.unique, rel=0.1)
    assert {0.05, 0.0} == {round(call.wait_s, 9) for call in scaled.calls}


def test_the_longest_chain_takes_a_step_for_each_token() -> None:
    workload = Workload("chain")
    first = workload.add(0, [Segment("a", 10)], 3)
    workload.add(0, [Continued(first)], 0, [first])

    assert 3 + 1 == workload.critical_len
