"""A contestant in a process of its own, asked line by line.

So threads and settings of one do not touch another, and while one is measured the others sleep. Run
as a module it is the contestant's side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never, get_args

from flowforge.bench.scenes import Scene
from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from flowforge.bench.scenes import Contestant, Spent
    from flowforge.engine.config import Dtype

ContestantName: TypeAlias = Literal[
    "flowforge",
    "flowforge-int4",
    "flowforge-float32",
    "transformers-bf16",
    "transformers-fp32",
    "transformers-batching",
    "llama.cpp",
    "llama.cpp-unified",
]
CONTESTANT_NAMES: tuple[ContestantName, ...] = get_args(ContestantName)

_DTYPES: dict[ContestantName, Dtype] = {
    "flowforge": "auto",
    "flowforge-int4": "int4",
    "flowforge-float32": "float32",
}


@dataclass(frozen=True, slots=True)
class ContestantSettings:
    """directory: of the model. gguf: the file it was made of, for llama.cpp; "" for none.

    most_streams, most_tokens: of any scene, the latter of one stream.
    """

    name: ContestantName
    directory: str
    gguf: str
    num_threads: int
    most_streams: int
    most_tokens: int


@dataclass(frozen=True, slots=True)
class Played:
    """wall_s, cpu_s: of the scene; None for one that the contestant cannot play.

    total_cpu_s: processor time of the process since its start.
    """

    wall_s: float | None
    cpu_s: float | None
    total_cpu_s: float


class ContestantError(Exception):
    """A contestant cannot be measured; says why."""


class ContestantProcess:
    """Started by its making, ended by `close`. total_cpu_s: as it last said, see `Played`."""

    def __init__(self, settings: ContestantSettings) -> None:
        """Raises ContestantError where the contestant's library is not there or cannot load."""
        # Open as long as the process, of which it has the last words.
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        threads = str(settings.num_threads)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"},
        )
        try:
            self.total_cpu_s = self._next_answer().total_cpu_s
        except ContestantError:
            self.close()
            raise

    def play(self, scene: Scene) -> Played:
        """Raises ContestantError when the contestant fails, or ends without a word."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(json.dumps(asdict(scene)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        played = self._next_answer()
        self.total_cpu_s = played.total_cpu_s
        return played

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None, "both are pipes"
                # What it did not take any more is not written either.
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
            self._said.close()

    def _next_answer(self) -> Played:
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantError(answer["error"])
        return Played(**answer)

    def _ended(self) -> ContestantError:
        self._process.wait()
        self._said.seek(0)
        lines = [line for line in self._said.read().splitlines() if line.strip()]
        return ContestantError(lines[-1] if lines else "its process ended without a word")


def _contestant(settings: ContestantSettings) -> Contestant:
    """Import what the contestant needs, and load the model."""
    directory, threads = Path(settings.directory), settings.num_threads
    match settings.name:
        case "flowforge" | "flowforge-int4" | "flowforge-float32":
            from flowforge.bench.engine_contestant import EngineContestant

            tokens = settings.most_streams * settings.most_tokens
            return EngineContestant(directory, _DTYPES[settings.name], tokens // 8 + 256)
        case "transformers-bf16" | "transformers-fp32":
            from flowforge.bench.transformers_contestants import TransformersContestant

            dtype = "bfloat16" if settings.name == "transformers-bf16" else "float32"
            return TransformersContestant(directory, dtype, threads)
        case "transformers-batching":
            from flowforge.bench.transformers_contestants import BatchingContestant

            return BatchingContestant(directory, "float32", threads)
        case "llama.cpp" | "llama.cpp-unified":
            from flowforge.bench.llama_contestant import LlamaContestant

            return LlamaContestant(
                Path(settings.gguf),
                threads,
                settings.most_streams,
                settings.most_tokens,
                is_unified=settings.name == "llama.cpp-unified",
            )
        case _:
            assert_never(settings.name)


def _serve(settings: ContestantSettings) -> None:
    # Whatever libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(words: dict[str, object]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    def played(spent: Spent | None) -> dict[str, object]:
        wall_s, cpu_s = (None, None) if spent is None else (spent.wall_s, spent.cpu_s)
        return asdict(Played(wall_s, cpu_s, time.process_time()))

    try:
        contestant = _contestant(settings)
        answer(played(None))
        for line in sys.stdin:
            answer(played(contestant.play(Scene(**json.loads(line)))))
    except FlowForgeError as error:
        answer({"error": f"{error.code} {error.message}"})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    _serve(ContestantSettings(**json.loads(sys.argv[1])))
