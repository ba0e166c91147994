"""A step whose logits stay where they were computed: tokens are drawn there and come back alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.device_copies import CopyToHost, to_device
from flowforge.engine.model_interface import ChunkLogits, StepResult
from flowforge.engine.row_draw import DrawnToken
from flowforge.engine.sampling import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from flowforge.engine.row_draw import RowDraw
    from flowforge.engine.row_sampler import RowSampler
    from flowforge.engine.step_plan import Chunk, StepPlan

    Array: TypeAlias = npt.NDArray[np.generic]


class DrawnTokens:
    """The tokens that the last step drew, at one place on the device: the next step reads them.

    ids: int64 [most].
    """

    def __init__(self, sampler: RowSampler, most: int, device: torch.device) -> None:
        self.ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._sampler = sampler

    def draw(self, logits: torch.Tensor, draws: Sequence[RowDraw]) -> torch.Tensor:
        """Draw from rows of logits; the tokens, which lie here until the next draw."""
        drawn = self.ids[: len(draws)]
        drawn.copy_(self._sampler.sample(logits, draws))
        return drawn

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, ...]:
        """See `RowSampler.logprobs`."""
        return self._sampler.logprobs(logits, token_ids, num_top)


class DeviceLogits:
    """A `LogitsRow` on the device. row: float32 [vocab_size]."""

    def __init__(self, row: torch.Tensor) -> None:
        self._row = row
        self._values: npt.NDArray[np.float32] | None = None

    def keep(self, values: npt.NDArray[np.float32]) -> None:
        """They came with the step's tokens."""
        # A copy: a row that is kept must not keep the whole step alive.
        self._values = values.copy()

    def on_host(self) -> npt.NDArray[np.float32]:
        """See `LogitsRow`."""
        if self._values is None:
            self._values = self._row.cpu().numpy().copy()
        return self._values


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Of some tokens, on the device. num_top: of each that are wanted; found: of all."""

    token_ids: list[int]
    num_top: list[int]
    found: tuple[torch.Tensor, ...]

    def read(self, arrays: Iterator[Array]) -> list[TokenLogprobs]:
        """From the next arrays that came back."""
        own, ids, top = (array.tolist() for array in islice(arrays, 3))
        return [
            TokenLogprobs(token, own[row], tuple(zip(ids[row][:num], top[row][:num], strict=True)))
            for row, (token, num) in enumerate(zip(self.token_ids, self.num_top, strict=True))
        ]


class DeviceStep:
    """See `LaunchedStep`."""

    def __init__(
        self,
        plan: StepPlan,
        logit_rows: Sequence[list[int]],
        compute: Callable[[list[int]], torch.Tensor],
        drawn: DrawnTokens,
        check: Callable[[], None],
    ) -> None:
        """logit_rows: groups as in `StepBatch`; compute: float32 [rows, vocab_size] of one.

        check: called when the tokens that were fed are known.
        """
        self._drawn = drawn
        self._check = check
        self._num_behind = [1 + len(chunk.drafted) if chunk.is_last else 0 for chunk in plan.chunks]
        groups = iter(logit_rows)
        behind = list(map(compute, _take(groups, sum(self._num_behind))))
        self._logits = behind[0] if len(behind) == 1 else torch.cat(behind) if behind else None
        self._rows = [
            DeviceLogits(row) for row in (() if self._logits is None else self._logits.unbind(0))
        ]
        self._scored = [
            _score(chunk, list(map(compute, _take(groups, len(chunk.scored_rows)))), drawn)
            for chunk in plan.chunks
        ]
        self._draws: Sequence[RowDraw] = ()
        self._kept: Sequence[int] = ()
        self._copy: CopyToHost | None = None

    @torch.inference_mode()
    def draw(self, draws: Sequence[RowDraw], kept: Sequence[int] = ()) -> None:
        """See `LaunchedStep.draw`."""
        self._check()
        self._draws, self._kept = draws, kept
        back = [tensor for one in self._scored if one is not None for tensor in one.found]
        if draws:
            logits = self._sources(draws)
            tokens = self._drawn.draw(logits, draws)
            back.append(tokens)
            if _num_top(draws) is not None:
                back += self._drawn.logprobs(logits, tokens, _num_top(draws) or 0)
        if kept:
            assert self._logits is not None, "kept rows are rows of logits"
            back.append(torch.stack([self._logits[row] for row in kept]))
        self._copy = CopyToHost(back)

    @torch.inference_mode()
    def read(self) -> StepResult:
        """See `LaunchedStep.read`."""
        assert self._copy is not None, "a step is drawn before it is read"
        arrays = iter(self._copy.read())
        scored = [() if one is None else tuple(one.read(arrays)) for one in self._scored]
        drawn = self._tokens(arrays) if self._draws else []
        if self._kept:
            for row, values in zip(self._kept, next(arrays), strict=True):
                self._rows[row].keep(values)
        rows = iter(self._rows)
        behind = [tuple(islice(rows, number)) for number in self._num_behind]
        return StepResult(list(map(ChunkLogits, behind, scored)), drawn)

    def _tokens(self, arrays: Iterator[Array]) -> list[DrawnToken]:
        tokens: list[int] = next(arrays).tolist()
        if _num_top(self._draws) is None:
            return [DrawnToken(token) for token in tokens]
        nums = [draw.params.num_logprobs for draw in self._draws]
        logprobs = _Logprobs(tokens, [num or 0 for num in nums], ()).read(arrays)
        return [
            DrawnToken(token, None if num is None else one)
            for token, num, one in zip(tokens, nums, logprobs, strict=True)
        ]

    def _sources(self, draws: Sequence[RowDraw]) -> torch.Tensor:
        """The logits that each is drawn from: [num_draws, vocab_size]."""
        # Forks of one prompt draw from the same row: it is brought once.
        kept = {id(one): one for draw in draws if not isinstance(one := draw.source, int)}
        places = {key: len(self._rows) + idx for idx, key in enumerate(kept)}
        rows = [one if isinstance(one := draw.source, int) else places[id(one)] for draw in draws]
        there = [] if self._logits is None else [self._logits]
        if there and not kept and rows == [*range(len(self._rows))]:
            return there[0]
        device = self._drawn.ids.device
        if kept:
            there += to_device([np.stack(list(kept.values()))], device)
        (at,) = to_device([np.array(rows, dtype=np.int64)], device)
        return torch.cat(there)[at]


def _take(groups: Iterator[list[int]], num_rows: int) -> Iterator[list[int]]:
    """The next groups, of so many rows in all."""
    while num_rows > 0:
        group = next(groups)
        num_rows -= len(group)
        yield group


def _num_top(draws: Sequence[RowDraw]) -> int | None:
    """The most log probabilities that any draw asks for; None where none does."""
    return max(
        (one for draw in draws if (one := draw.params.num_logprobs) is not None), default=None
    )


def _score(chunk: Chunk, logits: list[torch.Tensor], drawn: DrawnTokens) -> _Logprobs | None:
    """How likely the chunk's scored tokens are. logits: of its scored rows, in groups."""
    if not logits:
        return None
    generation = chunk.sequence.generation
    assert generation is not None and generation.scoring is not None, "rows are scored for it"
    rows = chunk.scored_rows
    token_ids = chunk.sequence.tokens[rows.start + 1 : rows.stop + 1]
    num_top = generation.scoring.num_top
    (ids,) = to_device([np.array(token_ids, dtype=np.int64)], logits[0].device)
    found = [
        drawn.logprobs(group, of_group, num_top)
        for group, of_group in zip(logits, ids.split([len(one) for one in logits]), strict=True)
    ]
    return _Logprobs(
        token_ids, [num_top] * len(token_ids), tuple(map(torch.cat, zip(*found, strict=True)))
    )
