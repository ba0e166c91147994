"""`flowforge bench engine`: scenes, contestants in processes, and what is told of them."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flowforge.bench.contestant_process import (
    ContestantError,
    ContestantProcess,
    ContestantSettings,
)
from flowforge.bench.engine_contestant import EngineContestant
from flowforge.bench.engine_report import as_json, ratio_table, table
from flowforge.bench.engine_suite import EngineSuiteResult, SceneTimes
from flowforge.bench.quiet import Quietness
from flowforge.bench.random_model import SHAPES, write_random_model
from flowforge.bench.scenes import Scene
from flowforge.bench.transformers_contestants import TransformersContestant
from flowforge.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

DECODE, PREFILL = Scene("decode", 4, 256, 10), Scene("prefill", 1, 1024, 1)
SCENES = (
    Scene("decode", 3, 20, 2),
    Scene("shared", 3, 20, 2),
    Scene("fan_out", 3, 20, 2),
    Scene("prefill", 1, 20, 1),
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_random_model(directory, SHAPES["tiny"])
    return directory


def result(quietness: Quietness) -> EngineSuiteResult:
    return EngineSuiteResult(
        (
            SceneTimes("flowforge", DECODE, (0.2, 0.1, 9.0), (0.4, 0.4, 0.4)),
            SceneTimes("flowforge", PREFILL, (2.0,), (4.0,)),
            SceneTimes("llama.cpp", DECODE, (0.4, 0.5, 0.3), (0.8, 0.8, 0.8)),
        ),
        {"transformers-bf16": "it is not installed"},
        quietness,
    )


def test_ratios_are_of_medians_and_only_of_what_both_played() -> None:
    found = result(Quietness(1.9, 0.0))

    assert 200 == pytest.approx(found.times[0].tokens_per_s)
    assert 512 == pytest.approx(found.times[1].tokens_per_s)
    assert 2 == pytest.approx(found.ratio(DECODE, "flowforge", "llama.cpp"))
    assert found.ratio(PREFILL, "flowforge", "llama.cpp") is None
    assert ["llama.cpp", "2.00x", "-"] == ratio_table(found).splitlines()[1].split()
    row = table(found).splitlines()[1].split()
    assert ["flowforge", "200.0", "(2.0)", "512.0", "(2.0)"] == row


@pytest.mark.parametrize("may_compare", [True, False])
def test_programs_get_ratios_only_where_times_may_be_compared(may_compare: bool) -> None:
    told = json.loads(
        json.dumps(as_json(result(Quietness(1.9, 0.4)), "a machine", with_ratios=may_compare))
    )

    ratios = [one["ratio"] for one in told["results"]]
    assert ([1.0, 1.0, 2.0] if may_compare else [None] * 3) == pytest.approx(ratios)
    assert {"transformers-bf16": "it is not installed"} == told["left_out"]
    assert not told["is_quiet"]


def test_the_engine_and_transformers_play_every_scene(model_dir: Path) -> None:
    engine = EngineContestant(model_dir, "auto", 64)
    transformers = TransformersContestant(model_dir, "float32", 1)

    for scene in (*SCENES, *SCENES):
        assert engine.play(scene).wall_s > 0
        assert transformers.play(scene).wall_s > 0


def test_a_contestant_that_cannot_load_says_why(tmp_path: Path) -> None:
    settings = ContestantSettings("flowforge", str(tmp_path / "none"), "", 1, 1, 64)

    with pytest.raises(ContestantError, match="none"):
        ContestantProcess(settings)


def test_a_process_that_ends_without_a_word_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))

    with pytest.raises(ContestantError, match="ended without a word"):
        ContestantProcess(ContestantSettings("flowforge", "", "", 1, 1, 64))


def test_the_command_measures_in_turn_and_tells_programs(model_dir: Path) -> None:
    arguments = ["bench", "engine", "--contestant", "flowforge", "--model", str(model_dir)]
    small = [
        "--streams",
        "1,2",
        "--context",
        "20",
        "--shared",
        "",
        "--fan-out",
        "",
        "--prompts",
        "9",
    ]
    ran = CliRunner().invoke(app, [*arguments, *small, "--steps", "2", "--rounds", "2", "--json"])

    assert 0 == ran.exit_code, ran.output
    told = json.loads(ran.stdout)
    assert ["decode 1", "decode 2", "prefill 9"] == [one["scene"] for one in told["results"]]
    assert [2, 2, 2] == [len(one["wall_s"]) for one in told["results"]]
    assert told["may_compare_times"] == told["is_quiet"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--streams", "1,0"], "not whole numbers above 0"),
        (["--contestant", "llama.cpp"], "give --gguf FILE"),
        (["--gguf", "a.gguf", "--model", "b"], "give one of them"),
        (["--streams", "", "--shared", "", "--fan-out", "", "--prompts", ""], "nothing is to be"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(
    wrong: list[str], said: str
) -> None:
    ran = CliRunner().invoke(app, ["bench", "engine", *wrong])

    assert 2 == ran.exit_code
    assert said in " ".join(ran.stderr.split())
