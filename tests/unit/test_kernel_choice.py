"""Which kernel is taken is measured once, calmly, and kept."""

from __future__ import annotations

import json
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flowforge.engine.models import kernel_choice
from flowforge.engine.models.linears import ALL_ROWS, LinearMaker, NativeKernels, TorchLinear
from flowforge.engine.native.library import LinearLibrary, find_library

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture(scope="module")
def kernels() -> LinearLibrary:
    found = find_library()
    if found is None:
        pytest.skip("there is no C compiler on this machine")
    return found


def test_small_matrices_are_not_measured(kernels: LinearLibrary) -> None:
    maker = LinearMaker("measured", NativeKernels(kernels))

    assert isinstance(maker.make(torch.zeros((64, 64)), None), TorchLinear)


def test_an_operator_s_choice_is_taken_without_measuring(
    kernels: LinearLibrary, tmp_path: Path
) -> None:
    maker = maker_at(kernels, tmp_path)

    kernel_choice.choose_kernels(maker, 3)

    assert [3] == [choice.most_rows for choice in maker.choices]
    assert [] == [*tmp_path.iterdir()]


def maker_at(kernels: LinearLibrary, folder: Path) -> LinearMaker:
    """With one matrix to choose for; what is measured is kept in a folder."""
    elsewhere = LinearLibrary(kernels.path)
    elsewhere.path = folder / "linear.so"
    maker = LinearMaker("measured", NativeKernels(elsewhere))
    maker.make(torch.ones((2048, 64)), None)
    return maker


def choices_in(path: Path) -> dict[str, int]:
    """Without when they were measured, if that was on a busy machine."""
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: one[0] if isinstance(one, list) else one for name, one in entries.items()}


def test_a_choice_is_measured_once_and_read_by_the_next_start(
    kernels: LinearLibrary, tmp_path: Path
) -> None:
    maker = maker_at(kernels, tmp_path)

    kernel_choice.choose_kernels(maker)

    (path,) = tmp_path.glob("*.json")
    assert {"float32 2048x64": maker.choices[0].most_rows} == choices_in(path)
    path.write_text('{"float32 2048x64": 5}', encoding="utf-8")
    kernel_choice.choose_kernels(maker)
    assert [5] == [choice.most_rows for choice in maker.choices]


class Machine:
    """Clocks on which runs take given seconds, and have a core for a share of them."""

    def __init__(self, seconds: Iterable[float], core_share: float = 1.0) -> None:
        self.num_runs = 0
        self.today_s = 1e9
        self._seconds = iter(seconds)
        self._core_share = core_share
        self._now_s = 0.0
        self._is_running = False

    @property
    def clocks(self) -> kernel_choice.Clocks:
        return kernel_choice.Clocks(
            self._wall, lambda: self._core_share * self._now_s, lambda: self.today_s
        )

    def _wall(self) -> float:
        if self._is_running:
            self._now_s += next(self._seconds)
            self.num_runs += 1
        self._is_running = not self._is_running
        return self._now_s


# What the kernels took and what torch took, in turns: the kernels are twice as quick.
CALM, DISTURBED = (1e-3, 2e-3), (1e-3, 2e-3, 5e-3, 9e-3, 5e-3, 9e-3)


@pytest.mark.parametrize("core_share", [1.0, 0.8])
def test_what_was_measured_calmly_is_kept_for_good(
    kernels: LinearLibrary, tmp_path: Path, core_share: float
) -> None:
    machine = Machine(cycle(CALM), core_share)

    kernel_choice.choose_kernels(maker_at(kernels, tmp_path), clocks=machine.clocks)

    num_runs, machine.today_s = machine.num_runs, 1e12
    again = maker_at(kernels, tmp_path)
    kernel_choice.choose_kernels(again, clocks=machine.clocks)
    assert 0 < num_runs == machine.num_runs
    assert [ALL_ROWS] == [choice.most_rows for choice in again.choices]


@pytest.mark.parametrize(
    "machine",
    [Machine(cycle(DISTURBED)), Machine(cycle(CALM), core_share=0.5)],
    ids=["uneven", "without a core"],
)
def test_what_was_measured_on_a_busy_machine_counts_for_an_hour(
    kernels: LinearLibrary, tmp_path: Path, machine: Machine
) -> None:
    calm = Machine(cycle((2e-3, 1e-3)))
    maker = maker_at(kernels, tmp_path)
    kernel_choice.choose_kernels(maker, clocks=machine.clocks)
    assert [ALL_ROWS] == [choice.most_rows for choice in maker.choices]

    num_runs = []
    for passed_s in (0, 3599, 3601, 1e7):
        calm.today_s = machine.today_s + passed_s
        maker = maker_at(kernels, tmp_path)
        kernel_choice.choose_kernels(maker, clocks=calm.clocks)
        num_runs.append(calm.num_runs)

    assert [0, 0] == num_runs[:2]
    assert 0 < num_runs[2] == num_runs[3]
    assert [0] == [choice.most_rows for choice in maker.choices]


def test_a_measurement_that_was_disturbed_is_tried_again_at_once(
    kernels: LinearLibrary, tmp_path: Path
) -> None:
    machine = Machine(chain(DISTURBED, cycle(CALM)))

    kernel_choice.choose_kernels(maker_at(kernels, tmp_path), clocks=machine.clocks)

    num_runs, machine.today_s = machine.num_runs, 1e12
    kernel_choice.choose_kernels(maker_at(kernels, tmp_path), clocks=machine.clocks)
    assert num_runs == machine.num_runs


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"float32 2048x64": "many"}', '{"float32 2048x64": [3]}', '{"float32'],
)
def test_a_damaged_file_of_choices_is_measured_again(
    kernels: LinearLibrary, tmp_path: Path, content: str
) -> None:
    maker = maker_at(kernels, tmp_path)
    name = f"linear-{torch.__version__}-{torch.get_num_threads()}.json"
    (tmp_path / name).write_text(content, encoding="utf-8")

    kernel_choice.choose_kernels(maker)

    assert {"float32 2048x64": maker.choices[0].most_rows} == choices_in(tmp_path / name)
