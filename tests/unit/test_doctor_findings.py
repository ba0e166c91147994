"""What `flowforge doctor` says of machines: of each fault what it is and how to mend it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flowforge.cli import doctor as command
from flowforge.cli import findings as judged
from flowforge.cli.exit_codes import ExitCode
from flowforge.engine.devices import CudaDevice, CudaFinding
from flowforge.engine.model_store.store import store_root
from flowforge.engine.processor import Processor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.cli.findings import Finding

GIB = 1 << 30
H200 = CudaDevice(0, "H200", (9, 0), 130 * GIB, 140 * GIB)
V100 = CudaDevice(1, "V100", (7, 0), 15 * GIB, 16 * GIB)
NO_CUDA = CudaFinding((), "torch is built without CUDA")

FAULTS: list[tuple[Finding, str]] = [
    (judged.judge_python((3, 10, 2), "python"), "error"),
    (judged.judge_torch(None, "no module", 1, 2), "error"),
    (judged.judge_torch("2.13", None, 8, 2), "warning"),
    (judged.judge_cpu(Processor("old", frozenset({"sse2"})), 2), "warning"),
    (judged.judge_compiler(None, linears=False, attention=False), "warning"),
    (judged.judge_compiler("cc", linears=True, attention=False), "warning"),
    (judged.judge_same_bits(is_same=False), "warning"),
    (judged.judge_memory(10), "warning"),
    (judged.judge_gpus(NO_CUDA, "570.1")[0], "warning"),
    (judged.judge_gpus(CudaFinding((V100,)), "570.1")[0], "warning"),
    (judged.judge_triton(None, "no module", has_gpu=True), "warning"),
    (judged.judge_gpu_kernels(None, [], "ptxas"), "warning"),
    (judged.judge_gpu_kernels(8, ["norms by 0.5"], None), "error"),
    (judged.judge_folder("disk", "/x", 10, None), "warning"),
    (judged.judge_folder("disk", "/x", 10, "no permission"), "error"),
    (judged.judge_folder("journal", "/x", None, "no permission"), "error"),
    (judged.judge_models([], None), "warning"),
    (judged.judge_models([], "a record is damaged"), "error"),
    (judged.judge_hub("https://hub", "timed out", is_offline=False), "warning"),
    (judged.judge_index(None, has_pip=False, is_needed=True), "warning"),
    (judged.judge_index("refused", has_pip=True, is_needed=True), "warning"),
    (
        judged.judge_terminal(is_terminal=True, columns=80, lines=24, encoding="ascii", term="x"),
        "warning",
    ),
    (
        judged.judge_terminal(is_terminal=True, columns=80, lines=24, encoding="utf-8", term=""),
        "warning",
    ),
    (
        judged.judge_terminal(is_terminal=True, columns=79, lines=24, encoding="UTF8", term="x"),
        "warning",
    ),
]
SOUND = [
    judged.judge_python((3, 11, 0), "python"),
    judged.judge_torch("2.13", None, 2, 2),
    judged.judge_cpu(Processor("EPYC", frozenset({"avx2"})), 2),
    judged.judge_compiler("cc", linears=True, attention=True),
    judged.judge_same_bits(is_same=True),
    judged.judge_bandwidth("bandwidth", 10e9),
    judged.judge_memory(8 * GIB),
    *judged.judge_gpus(CudaFinding((H200,)), "570.1"),
    judged.judge_triton("3.7.1", None, has_gpu=True),
    judged.judge_gpu_kernels(8, [], None),
    judged.judge_folder("disk", "/x", 100 * GIB, None),
    judged.judge_models(["m@1"], None),
    judged.judge_hub("https://hub", None, is_offline=False),
    judged.judge_index(None, has_pip=True, is_needed=True),
    judged.judge_terminal(is_terminal=True, columns=80, lines=24, encoding="utf-8", term="xterm"),
]
NOT_THERE = [
    *judged.judge_gpus(NO_CUDA, None),
    judged.judge_triton(None, "no module", has_gpu=False),
    judged.judge_gpu_kernels(None, [], None),
    judged.judge_hub("https://hub", None, is_offline=True),
    judged.judge_same_bits(None),
    judged.judge_index(None, has_pip=False, is_needed=False),
    judged.judge_terminal(is_terminal=False, columns=80, lines=24, encoding="utf-8", term=""),
]


@pytest.mark.parametrize(("finding", "state"), FAULTS)
def test_every_fault_comes_with_a_fix(finding: Finding, state: str) -> None:
    assert state == finding.state
    assert finding.fix


@pytest.mark.parametrize("finding", SOUND)
def test_what_is_sound_needs_no_fix(finding: Finding) -> None:
    assert ("ok", None) == (finding.state, finding.fix)


@pytest.mark.parametrize("finding", NOT_THERE)
def test_what_nobody_needs_is_no_fault(finding: Finding) -> None:
    assert ("skipped", None) == (finding.state, finding.fix)


def test_a_gpu_says_what_it_is() -> None:
    (found,) = judged.judge_gpus(CudaFinding((H200,)), "570.1")

    expected = "H200, compute capability 9.0, 139.6 GB of 150.3 GB free, driver 570.1"
    assert expected == found.detail


def only(monkeypatch: pytest.MonkeyPatch, **looks: Callable[[], list[Finding]]) -> None:
    monkeypatch.setattr(command, "_LOOKS", looks)
    monkeypatch.setattr(command, "_NETWORK", {"hub": vars(command)["_hub"]})


def test_an_error_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, python=lambda: [judged.judge_python((3, 10, 0), "python")])

    done = CliRunner().invoke(command.doctor, ["--json"])

    assert ExitCode.ENGINE == done.exit_code
    told = json.loads(done.stdout)
    assert not told["ok"]
    assert ["python", "hub"] == [finding["name"] for finding in told["findings"]]


def test_a_look_that_breaks_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("no such file")

    only(monkeypatch, memory=broken, cpu=lambda: [SOUND[2]])

    done = CliRunner().invoke(command.doctor, [])

    assert ExitCode.ENGINE == done.exit_code
    assert "looking failed: RuntimeError: no such file" in done.stdout
    assert "EPYC" in done.stdout


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    """Everything for real, in a home of its own: nothing is fetched, and a model is asked for."""
    home = tmp_path / "home"
    home.mkdir()
    kernels = store_root() / "native"
    kernels.mkdir(parents=True, exist_ok=True)
    (home / "native").symlink_to(kernels)  # compiled once for all tests
    # An index with nothing in it, of which pip need not ask anybody.
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    environment = {**os.environ, **index, "FLOWFORGE_HOME": str(home)}
    words = [sys.executable, "-m", "flowforge", "doctor", "--json"]

    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert "" == done.stderr
    told = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert {"python", "torch", "cpu", "c kernels", "memory", "gpu", "triton"} <= told.keys()
    assert {"disk", "journal", "models", "hub", "index", "terminal"} <= told.keys()
    assert "ok" == told["python"]["state"]
    assert "ok" == told["torch"]["state"]
    assert "skipped" == told["hub"]["state"], "tests do not ask the hub"
    assert "flowforge models pull" in told["models"]["fix"]
    assert "warning" == told["index"]["state"]
    assert "No matching distribution" in told["index"]["detail"]
    assert told["c kernels"]["state"] != "ok" or told["same bits"]["state"] == "ok"
    assert not [one for one in told.values() if "looking failed" in one["detail"]]


def test_a_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLOWFORGE_HOME", str(tmp_path / "file" / "home"))
    only(monkeypatch, disk=vars(command)["_LOOKS"]["disk"])

    done = CliRunner().invoke(command.doctor, ["--json"])

    assert ExitCode.ENGINE == done.exit_code
    disk = json.loads(done.stdout)["findings"][0]
    assert ("disk", "error") == (disk["name"], disk["state"])
    assert "is no folder" in disk["detail"]
