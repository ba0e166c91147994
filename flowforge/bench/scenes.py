"""What engines are asked to compute beside each other, and who is asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, assert_never

if TYPE_CHECKING:
    import random

SceneKind: TypeAlias = Literal["decode", "shared", "fan_out", "prefill"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A measured piece of work.

    decode: streams go on behind contexts of their own. shared: they go on behind one context that
    all have in common. fan_out: a fresh prompt is computed and then so many streams go on behind
    it. prefill: a fresh prompt is computed. prompt_len: tokens of a context or prompt; num_steps:
    tokens that each stream writes, greedily. Contexts of decode and shared are computed before.
    """

    kind: SceneKind
    num_streams: int
    prompt_len: int
    num_steps: int

    @property
    def name(self) -> str:
        """For tables."""
        match self.kind:
            case "decode":
                return f"decode {self.num_streams}"
            case "shared":
                return f"shared {self.num_streams}x{self.prompt_len}"
            case "fan_out":
                return f"fan-out {self.num_streams}x{self.prompt_len}"
            case "prefill":
                return f"prefill {self.prompt_len}"
            case _:
                assert_never(self.kind)

    @property
    def num_tokens(self) -> int:
        """Tokens whose number a second is told: those written, of a prefill those read."""
        return self.prompt_len if self.kind == "prefill" else self.num_streams * self.num_steps


@dataclass(frozen=True, slots=True)
class Spent:
    """cpu_s: processor time of all threads of the process."""

    wall_s: float
    cpu_s: float


class Stopwatch:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self) -> Spent:
        """So far."""
        return Spent(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class Contestant(Protocol):
    """An engine with a model, in a process of its own."""

    def play(self, scene: Scene) -> Spent | None:
        """Play a scene once; None for one that this engine has no way to play."""
        ...


def some_tokens(source: random.Random, num_tokens: int) -> list[int]:
    """Ids of a prompt that nobody has seen: of ordinary tokens in every vocabulary."""
    return [source.randrange(100, 2000) for _ in range(num_tokens)]
