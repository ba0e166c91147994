"""The processes beside the first rank: begun, watched, told of each step, and ended with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge import environment
from flowforge.engine.parallel.messages import Meet, PartLoaded, WorkerFailed
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.engine.parallel.messages import FromWorker, PartTask, ToWorker

# Time for a worker's last words, once the group says that it is gone.
_LAST_WORDS_S = 30.0
_EXIT_S = 30.0
_HELP = "start the engine again; what it had computed is computed anew"
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from flowforge.engine.parallel.worker import main; main(int(sys.argv[1]))"
)


def new_meeting_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the ranks of one engine meet: only this user may read it. `Workers` removes it."""
    return tempfile.TemporaryDirectory(prefix="flowforge-ranks-")


class Workers:
    """Owns the processes of all ranks but the first, from the beginning of their loading.

    tasks: one each. num_threads: of torch, in each. folder: of the meeting, removed at the end.
    """

    def __init__(
        self,
        tasks: Sequence[PartTask],
        num_threads: int,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._fault: EngineError | None = None
        self._has_fault = threading.Event()
        self._stop, self._stopped = socket.socketpair()
        self._watcher: threading.Thread | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        try:
            for task in tasks:
                self._begin(task, num_threads)
        except BaseException:
            self.close()
            raise

    def meet(self) -> None:
        """Wait until every worker has its weights, and let them join the group.

        Raises what a worker could not load for, or EngineError EN237 when one has ended.
        """
        for idx, connection in enumerate(self._connections):
            said = self._hear(connection)
            if not isinstance(said, PartLoaded):
                raise self._failed(idx, said)
        for connection in self._connections:
            connection.send(Meet())

    def watch(self, on_fault: Callable[[], None]) -> None:
        """From now on notice when a worker ends; on_fault lets go whoever waits for one."""
        self._watcher = threading.Thread(
            target=self._watch, args=(on_fault,), name="flowforge-ranks", daemon=True
        )
        self._watcher.start()

    def send(self, message: ToWorker) -> None:
        """Tell all workers the same. Raises EngineError EN237 once one has ended."""
        self.send_each([message] * len(self._connections))

    def send_each(self, messages: Sequence[ToWorker]) -> None:
        """Tell each worker its own, in the order of their ranks. Raises as `send`."""
        if self._fault is not None:
            raise self._again(self._fault)
        try:
            for connection, message in zip(self._connections, messages, strict=True):
                connection.send(message)
        except OSError as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> EngineError:
        """What to tell of a step that failed: the ranks are out of step, so all of them end."""
        self._has_fault.wait(_LAST_WORDS_S if self._watcher is not None else 0)
        message = f"a step failed on the first rank: {type(error).__name__}: {error}"
        fault = self._note(EngineError("EN237", message, help=_HELP))
        self._kill()
        return self._again(fault)

    def close(self) -> None:
        """End all workers; returns when they are gone. Idempotent."""
        if self._watcher is not None and self._watcher.is_alive():
            self._stop.send(b".")
            self._watcher.join()
        for connection in self._connections:
            connection.close()
        self._stop.close()
        self._stopped.close()
        for process in self._processes:
            try:
                process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _begin(self, task: PartTask, num_threads: int) -> None:
        ours, theirs = socket.socketpair()
        variables = {
            **os.environ,
            environment.THREADS.name: str(num_threads),
            environment.WAIT_POLICY.name: "passive",
        }
        with ours, theirs, self._words(task.rank.index).open("wb") as words:
            process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env=variables,
                pass_fds=[theirs.fileno()],
                # An interrupt of the terminal is the first rank's to act on.
                start_new_session=True,
            )
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))
        self._connections[-1].send(task)

    def _watch(self, on_fault: Callable[[], None]) -> None:
        ready = wait([*self._connections, self._stopped])
        if self._stopped in ready:
            return
        # Workers say nothing but their last words.
        idx = next(idx for idx, one in enumerate(self._connections) if one in ready)
        self._failed(idx, self._hear(self._connections[idx]))
        on_fault()

    @staticmethod
    def _hear(connection: Connection) -> FromWorker | None:
        """The next message of a worker; None when it has ended."""
        try:
            said: FromWorker = connection.recv()
        except (EOFError, OSError):
            return None
        return said

    def _failed(self, idx: int, said: FromWorker | None) -> EngineError:
        rank = idx + 1
        if isinstance(said, WorkerFailed):
            code = said.code or "EN237"
            of_rank = f"rank {rank} of {len(self._connections) + 1}: {said.message}"
            return self._note(EngineError(code, of_rank, help=said.help or _HELP))
        process = self._processes[idx]
        try:
            status = process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            # It has let go of its socket and can serve nobody any more.
            process.kill()
            status = process.wait()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        last = self._last_words(rank)
        message = f"the process of rank {rank} ended {how}{f': {last}' if last else ''}"
        return self._note(EngineError("EN237", message, help=_HELP))

    def _note(self, fault: EngineError) -> EngineError:
        """Keep the first fault: what follows is its consequence."""
        with self._lock:
            if self._fault is None:
                self._fault = fault
        self._has_fault.set()
        return self._fault

    @staticmethod
    def _again(fault: EngineError) -> EngineError:
        # Each reader gets an error of its own: they are raised on more than one way.
        return EngineError(fault.code, fault.message, help=fault.help)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _words(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank-{rank}.log"

    def _last_words(self, rank: int) -> str:
        lines = self._words(rank).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
