"""`flowforge run` and `resume` as processes that end in the middle, by a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from durable_workflows import FLOWS, write_workflow

SUPPORT = Path(__file__).parent
KILLED = -9


@dataclass(frozen=True)
class Stand:
    """A folder with a workflow, its script and answers, and a journal."""

    folder: Path
    workflow: str

    @property
    def journal(self) -> Path:
        return self.folder / "runs.db"

    @property
    def is_flow(self) -> bool:
        return self.workflow in FLOWS

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def prepare(self) -> None:
        """Write the files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_workflow(self.workflow, self.folder)

    def begin(self, failpoint: str | None = None) -> subprocess.Popen[str]:
        """Start the run. failpoint: where the process kills itself."""
        return self._start(
            "run",
            f"{self.workflow}.py:{self.workflow}" if self.is_flow else f"{self.workflow}.yaml",
            *("-i", f"ledger={self.ledger}", "--seed", "7"),
            *("--backend", "script:script.json", "--answers", "answers.json"),
            failpoint=failpoint,
        )

    def resume(self, failpoint: str | None = None) -> subprocess.Popen[str]:
        """Go on with it."""
        # A flow's tools do not say themselves what is to be done about uncertain calls.
        words = ("--on-uncertain", "retry") if self.is_flow else ()
        return self._start("resume", *words, failpoint=failpoint)

    def lines(self) -> list[str]:
        """What tools did."""
        return sorted(self.ledger.read_text().splitlines()) if self.ledger.exists() else []

    def _start(self, *arguments: str, failpoint: str | None) -> subprocess.Popen[str]:
        known = [path for path in (str(SUPPORT), os.environ.get("PYTHONPATH")) if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(known)}
        environment["FLOWFORGE_JOURNAL"] = str(self.journal)
        if failpoint is not None:
            environment["FLOWFORGE_FAILPOINT"] = failpoint
        return subprocess.Popen(
            [sys.executable, "-m", "flowforge", *arguments],
            cwd=self.folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
