"""`history_model` on a device: what is launched is done later, in order, at the latest when read.

So whoever takes a launched step for a computed one, frees a page before its turn, or feeds another
token than was drawn, reads rows of another text.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from history_model import VOCAB_SIZE, HistoryChunk, HistoryRunner, history_core

from flowforge.engine.model_interface import ChunkLogits, StepResult
from flowforge.engine.row_draw import NO_NUMBER, NO_TOKEN, DrawnToken, draw_token
from flowforge.engine.sampling import logprobs_of
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.core import EngineCore
    from flowforge.engine.kv.cache import KvCache
    from flowforge.engine.row_draw import RowDraw
    from flowforge.engine.speculation.speculator import Speculator
    from flowforge.engine.step_plan import StepPlan


def device_core(
    *,
    seed: int = 0,
    overlaps: bool = True,
    num_pages: int = 64,
    num_host_slots: int = 0,
    max_step_tokens: int = 16,
    max_running: int = 8,
    speculator: Speculator | None = None,
) -> tuple[EngineCore, HistoryDevice, KvCache]:
    """As `history_core`, on such a device. seed: of its times."""
    core, runner, kv = history_core(
        num_pages=num_pages,
        num_host_slots=num_host_slots,
        max_step_tokens=max_step_tokens,
        max_running=max_running,
        speculator=speculator,
        make_runner=partial(HistoryDevice, seed=seed),
        overlaps=overlaps,
    )
    assert isinstance(runner, HistoryDevice)
    return core, runner, kv


class HistoryDevice(HistoryRunner):
    """Does what it is told at random times, never out of order.

    log: what was told and done, in order: "launch", "draw", "read", "forward", "drawn".
    read_error: raised by reads while it is set; what was told and is not done then never is.
    """

    def __init__(self, kv: KvCache, seed: int = 0) -> None:
        super().__init__(kv)
        self.log: list[str] = []
        self.read_error: Exception | None = None
        self.drawn: list[int] = []
        self._random = random.Random(seed)
        self._queue: deque[Callable[[], None]] = deque()

    @property
    def draws_tokens(self) -> bool:
        """See `StepRunner.draws_tokens`."""
        return True

    def launch(self, plan: StepPlan) -> _DeviceStep:
        """See `StepRunner.launch`."""
        self.log.append("launch")
        self.note(plan)
        step = _DeviceStep(self, [HistoryChunk.of(self.kv, chunk) for chunk in plan.chunks])

        def forward() -> None:
            self.log.append("forward")
            self.move(plan.moves)
            step.compute()

        self.tell(forward)
        return step

    def tell(self, work: Callable[[], None]) -> None:
        """Have something done behind all that was told before."""
        self._queue.append(work)
        while self._queue and self._random.random() < 0.3:
            self._queue.popleft()()

    def stop(self) -> None:
        """Do nothing more of what was told."""
        self._queue.clear()

    def wait(self) -> None:
        """Return when all that was told is done."""
        while self._queue:
            self._queue.popleft()()


@dataclass
class _DeviceStep:
    """See `LaunchedStep`."""

    device: HistoryDevice
    chunks: list[HistoryChunk]
    results: list[ChunkLogits] = field(default_factory=list[ChunkLogits])
    drawn: list[DrawnToken] = field(default_factory=list[DrawnToken])

    def compute(self) -> None:
        """The forward pass, in its turn."""
        device = self.device
        self.chunks = [
            chunk
            if chunk.feed is None
            else replace(chunk, tokens=(*chunk.tokens, max(0, device.drawn[chunk.feed])))
            for chunk in self.chunks
        ]
        for chunk in self.chunks:
            device.compute(chunk)
        self.results = [device.judge(chunk) for chunk in self.chunks]

    def draw(self, draws: Sequence[RowDraw], kept: Sequence[int] = ()) -> None:
        """See `LaunchedStep.draw`."""
        self.device.log.append("draw")

        def choose() -> None:
            self.device.log.append("drawn")
            behind = [row.on_host() for chunk in self.results for row in chunk.behind]
            assert all(0 <= row < len(behind) for row in kept)
            self.drawn = [
                _drawn(one, behind[one.source] if isinstance(one.source, int) else one.source)
                for one in draws
            ]
            self.device.drawn = [one.token_id for one in self.drawn]

        self.device.tell(choose)

    def read(self) -> StepResult:
        """See `LaunchedStep.read`."""
        self.device.log.append("read")
        if self.device.read_error is not None:
            self.device.stop()
            raise self.device.read_error
        self.device.wait()
        return StepResult(self.results, self.drawn)


def _drawn(draw: RowDraw, logits: npt.NDArray[np.float32]) -> DrawnToken:
    values = logits[:VOCAB_SIZE]
    try:
        token_id = draw_token(draw, values)
    except EngineError as error:
        return DrawnToken(NO_NUMBER if error.code == "EN211" else NO_TOKEN)
    num_top = draw.params.num_logprobs
    return DrawnToken(token_id, None if num_top is None else logprobs_of(values, token_id, num_top))
