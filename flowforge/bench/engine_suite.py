"""Scenes played by contestants in turn, round by round: what `flowforge bench engine` does."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from flowforge.bench.contestant_process import ContestantError, ContestantProcess
from flowforge.bench.quiet import Quietness, QuietnessMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.bench.contestant_process import ContestantName, ContestantSettings
    from flowforge.bench.scenes import Scene


@dataclass(frozen=True, slots=True)
class SceneTimes:
    """Of one contestant in one scene, round by round; the first, which warms up, is not there.

    cpu_s: processor time of its process, of all threads together.
    """

    contestant: ContestantName
    scene: Scene
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """By the median."""
        return self.scene.num_tokens / median(self.wall_s)


@dataclass(frozen=True, slots=True)
class EngineSuiteResult:
    """left_out: contestants that could not be measured, and why."""

    times: tuple[SceneTimes, ...]
    left_out: dict[ContestantName, str]
    quietness: Quietness

    def of(self, contestant: ContestantName, scene: Scene) -> SceneTimes | None:
        """What was measured; None where nothing was."""
        wanted = (contestant, scene)
        return next((one for one in self.times if (one.contestant, one.scene) == wanted), None)

    def ratio(self, scene: Scene, contestant: ContestantName, to: ContestantName) -> float | None:
        """How often as quick one is as another; None where one of them was not measured."""
        first, second = self.of(contestant, scene), self.of(to, scene)
        if first is None or second is None:
            return None
        return first.tokens_per_s / second.tokens_per_s


def run_engine_suite(
    contestants: Sequence[ContestantSettings],
    scenes: Sequence[Scene],
    num_rounds: int,
    most_s: float,
    tell: Callable[[str], None],
) -> EngineSuiteResult:
    """Play all scenes once to warm up, then `num_rounds` times.

    most_s: no round begins later, but the first counted one does. tell: called with what goes on.
    """
    left_out: dict[ContestantName, str] = {}
    with ExitStack() as stack:
        processes: dict[ContestantName, ContestantProcess] = {}
        for settings in contestants:
            tell(f"loading {settings.name}")
            try:
                process = ContestantProcess(settings)
            except ContestantError as error:
                left_out[settings.name] = str(error)
                continue
            stack.callback(process.close)
            processes[settings.name] = process
        rounds = _Rounds(processes, scenes, left_out)
        ends_at = time.monotonic() + most_s
        rounds.play()
        meter, before_s = QuietnessMeter(), rounds.cpu_s()
        rounds.clear()
        for idx in range(num_rounds):
            if idx > 0 and time.monotonic() > ends_at:
                break
            tell(f"round {idx + 1} of {num_rounds}")
            rounds.play()
        quietness = meter.look(rounds.cpu_s() - before_s)
    return EngineSuiteResult(rounds.times(), left_out, quietness)


class _Rounds:
    """Keeps what was measured. Who fails is told in left_out and not asked again."""

    def __init__(
        self,
        processes: dict[ContestantName, ContestantProcess],
        scenes: Sequence[Scene],
        left_out: dict[ContestantName, str],
    ) -> None:
        self._processes = processes
        self._scenes = scenes
        self._left_out = left_out
        self._played: dict[tuple[ContestantName, Scene], list[tuple[float, float]]] = {}

    def play(self) -> None:
        """All scenes; contestants take turns within each, so that a busy minute befalls all."""
        for scene in self._scenes:
            for name, process in self._processes.items():
                if name in self._left_out:
                    continue
                try:
                    played = process.play(scene)
                except ContestantError as error:
                    self._left_out[name] = f"{scene.name}: {error}"
                    continue
                if played.wall_s is not None and played.cpu_s is not None:
                    of_scene = self._played.setdefault((name, scene), [])
                    of_scene.append((played.wall_s, played.cpu_s))

    def clear(self) -> None:
        """Forget what was measured."""
        self._played.clear()

    def cpu_s(self) -> float:
        """Processor time of all processes so far."""
        return sum(process.total_cpu_s for process in self._processes.values())

    def times(self) -> tuple[SceneTimes, ...]:
        """What was measured."""
        return tuple(
            SceneTimes(name, scene, tuple(wall for wall, _ in of), tuple(cpu for _, cpu in of))
            for (name, scene), of in self._played.items()
        )
