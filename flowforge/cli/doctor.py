"""`flowforge doctor`: what this machine has of what FlowForge can use, with a fix for each gap."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from flowforge import environment
from flowforge.cli import findings as judged
from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flowforge.engine.devices import CudaDevice

_HUB_TIMEOUT_S = 3.0
_COMMAND_TIMEOUT_S = 3.0
_INDEX_TIMEOUT_S = 20.0
_READ_BYTES = 256 << 20
_NUM_READS = 3


@click.command
@options.as_json
@options.traceback
@guarded
def doctor(*, as_json: bool, traceback: bool) -> ExitCode:
    """Look at Python, torch, processor, kernels, GPU, disk, models, terminal and network.

    Says how each is, and of what is missing how to mend it. Exits with 4 when FlowForge cannot work
    here, with 0 otherwise.
    """
    found: list[Finding] = []
    for finding in examine():
        found.append(finding)
        if not as_json:
            _print(finding)
    has_errors = any(finding.state == "error" for finding in found)
    if as_json:
        told = [_as_json(finding) for finding in found]
        print_json_line({"ok": not has_errors, "findings": told})
    return ExitCode.ENGINE if has_errors else ExitCode.DONE


def examine() -> Iterator[Finding]:
    """All findings, each as soon as it is known. A look that breaks is a finding itself."""
    with ThreadPoolExecutor(len(_NETWORK)) as beside:
        # The network is waited for while the rest is looked at.
        asked = [beside.submit(_guarded, name, look) for name, look in _NETWORK.items()]
        for name, look in _LOOKS.items():
            yield from _guarded(name, look)
        for one in asked:
            yield from one.result()


def _guarded(name: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except Exception as error:
        detail = f"looking failed: {type(error).__name__}: {error}"
        return [Finding(name, "error", detail, "please report this: a look must not fail")]


def _print(finding: Finding) -> None:
    mark = {"ok": "ok", "warning": "warning", "error": "error", "skipped": "-"}[finding.state]
    colour = {"ok": "green", "warning": "yellow", "error": "red", "skipped": None}[finding.state]
    shown = click.style(f"{mark:7}", fg=colour)
    click.echo(f"{shown}  {finding.name:11}  {finding.detail}")
    if finding.fix is not None:
        click.echo(f"{'':9}{'':11}  fix: {finding.fix}")


def _as_json(finding: Finding) -> dict[str, str | None]:
    return {
        "name": finding.name,
        "state": finding.state,
        "detail": finding.detail,
        "fix": finding.fix,
    }


def _python() -> list[Finding]:
    return [judged.judge_python(sys.version_info[:3], sys.executable)]


def _torch() -> list[Finding]:
    from flowforge.engine.cores import num_usable_cores

    cores = num_usable_cores()
    try:
        import torch
    except ImportError as error:
        return [judged.judge_torch(None, str(error), 0, cores)]
    return [judged.judge_torch(torch.__version__, None, _num_threads(cores), cores)]


def _num_threads(cores: int) -> int:
    """As many as an engine would take."""
    set_to = environment.THREADS.text()
    return int(set_to) if set_to.isdecimal() else cores


def _cpu() -> list[Finding]:
    from flowforge.engine.cores import num_usable_cores
    from flowforge.engine.processor import find_processor

    return [judged.judge_cpu(find_processor(), num_usable_cores())]


def _compiled_kernels() -> list[Finding]:
    from flowforge.engine.attention.compiled import find_attention_library
    from flowforge.engine.native.library import find_library

    named = environment.COMPILER.text("cc")
    words = shlex.split(named)
    compiler = named if words and shutil.which(words[0]) else None
    linears, attention = find_library() is not None, find_attention_library() is not None
    return [judged.judge_compiler(compiler, linears, attention)]


def _same_bits() -> list[Finding]:
    """Tried on a small model with random weights, as an engine tries it at its start."""
    from flowforge.engine.attention.compiled import find_attention_library
    from flowforge.engine.native.library import find_library

    if find_library() is None or find_attention_library() is None:
        return [judged.judge_same_bits(None)]
    from flowforge.bench.random_model import SHAPES, write_random_model
    from flowforge.engine.config import EngineConfig
    from flowforge.engine.loading import load_core
    from flowforge.errors import EngineError

    shape = SHAPES["small"]
    config = EngineConfig(num_pages=4, device="cpu", is_deterministic=True)
    with TemporaryDirectory(prefix="flowforge-doctor-") as folder:
        write_random_model(Path(folder), shape)
        try:
            core = load_core(folder, vocab_size=shape.vocab_size, config=config)
        except EngineError as error:
            if error.code != "EN234":
                raise
            return [judged.judge_same_bits(is_same=False)]
    return [judged.judge_same_bits(core.statistics().compute.is_deterministic)]


def _memory() -> list[Finding]:
    from flowforge.engine.memory import free_memory

    free = free_memory()
    findings = [judged.judge_memory(free)]
    if free > 2 * _READ_BYTES:
        findings.append(judged.judge_bandwidth("bandwidth", _read_rate("cpu")))
    return findings


def _gpu() -> list[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    from flowforge.engine.devices import find_cuda_devices

    found = find_cuda_devices()
    findings = judged.judge_gpus(found, _driver_version())
    triton: str | None = None
    why_not: str | None = None
    try:
        triton = version("triton")
    except PackageNotFoundError as error:
        why_not = str(error)
    findings.append(judged.judge_triton(triton, why_not, has_gpu=bool(found.devices)))
    if not found.devices or triton is None:
        return [*findings, judged.judge_gpu_kernels(None, [], None)]
    for device in found.devices:
        name = f"cuda:{device.index}"
        findings.append(judged.judge_bandwidth(f"bandwidth {name}", _read_rate(name)))
    return [*findings, _gpu_kernels(found.devices[0])]


def _gpu_kernels(device: CudaDevice) -> Finding:
    try:
        from flowforge.engine.kernels.checks import check_float8_kernels, check_kernels
        from flowforge.engine.kernels.presence import LEAST_FLOAT8_CAPABILITY

        name = f"cuda:{device.index}"
        checks = list(check_kernels(name))
        if device.capability >= LEAST_FLOAT8_CAPABILITY:
            checks += check_float8_kernels(name)
    except Exception as error:
        # Compilers and drivers fail with errors of many kinds; each is the finding.
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return judged.judge_gpu_kernels(None, [], told)
    wrong = [f"{check.name} by {check.error:.1e}" for check in checks if not check.is_right]
    return judged.judge_gpu_kernels(len(checks), wrong, None)


def _read_rate(device: str) -> float:
    """Bytes a second at which a device reads its memory: the best of a few passes."""
    import torch

    with torch.inference_mode():
        # Written first: pages that nobody wrote are all one page.
        values = torch.ones(_READ_BYTES // 4, device=device)
        best_s = float("inf")
        for _ in range(_NUM_READS):
            started_at = time.perf_counter()
            values.sum().item()  # waits for the device
            best_s = min(best_s, time.perf_counter() - started_at)
    return _READ_BYTES / best_s


def _driver_version() -> str | None:
    """By the driver's own tool; None where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def _folders() -> list[Finding]:
    from flowforge.engine.model_store.store import store_root
    from flowforge.journal.location import default_journal

    root, journal = store_root(), default_journal()
    free = shutil.disk_usage(_nearest(root)).free
    return [
        judged.judge_folder("disk", str(root), free, _why_not_writable(root)),
        judged.judge_folder("journal", str(journal), None, _why_not_writable(journal.parent)),
    ]


def _nearest(path: Path) -> Path:
    """The path, or of the folders above it the first that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def _why_not_writable(folder: Path) -> str | None:
    nearest = _nearest(folder)
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"no permission in {nearest}"
    return None


def _models() -> list[Finding]:
    from flowforge.engine.model_store import list_models
    from flowforge.errors import EngineError

    try:
        names = [f"{one.name}@{one.revision}" for one in list_models()]
    except (EngineError, OSError) as error:
        return [judged.judge_models([], str(error))]
    return [judged.judge_models(names, None)]


def _hub() -> list[Finding]:
    import httpx2
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return [judged.judge_hub(constants.ENDPOINT, None, is_offline=True)]
    error: str | None = None
    try:
        # Any answer will do: it is reached.
        httpx2.head(constants.ENDPOINT, timeout=_HUB_TIMEOUT_S)
    except httpx2.HTTPError as failure:
        error = str(failure) or type(failure).__name__
    return [judged.judge_hub(constants.ENDPOINT, error, is_offline=False)]


def _index() -> list[Finding]:
    from importlib.util import find_spec

    from flowforge.engine.model_store import path
    from flowforge.engine.model_store.wheel import REQUIREMENT, reason_of
    from flowforge.errors import EngineError

    has_pip = find_spec("pip") is not None
    try:
        path()
    except EngineError:
        pass
    else:
        return [judged.judge_index(None, has_pip=has_pip, is_needed=False)]
    if not has_pip:
        return [judged.judge_index(None, has_pip=False, is_needed=True)]
    name = REQUIREMENT.partition("==")[0]
    words = ("index", "versions", name)
    settings = ("--retries", "1", "--timeout", str(_HUB_TIMEOUT_S), "--disable-pip-version-check")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, *settings],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INDEX_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        found: str | None = f"no answer within {_INDEX_TIMEOUT_S:g} s"
    else:
        found = reason_of(done.stderr, f"pip {' '.join(words)}") if done.returncode else None
    return [judged.judge_index(found, has_pip=True, is_needed=True)]


def _terminal() -> list[Finding]:
    size = shutil.get_terminal_size()
    finding = judged.judge_terminal(
        is_terminal=sys.stderr.isatty(),
        columns=size.columns,
        lines=size.lines,
        encoding=sys.stderr.encoding,
        term=environment.TERM.text(),
    )
    return [finding]


_NETWORK: dict[str, Callable[[], list[Finding]]] = {"hub": _hub, "index": _index}
_LOOKS: dict[str, Callable[[], list[Finding]]] = {
    "python": _python,
    "torch": _torch,
    "cpu": _cpu,
    "c kernels": _compiled_kernels,
    "same bits": _same_bits,
    "memory": _memory,
    "gpu": _gpu,
    "disk": _folders,
    "models": _models,
    "terminal": _terminal,
}
