"""Which kernel is quicker on this machine, for each shape and number of rows: measured once, kept.

Kept so that a second start costs nothing, and so that the same run takes the same kernels and gives
the same bits. What was measured while other programs took the machine is kept for an hour only.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

import torch

from flowforge.engine.models.linears import ALL_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.engine.models.linears import (
        ChosenLinear,
        Linear,
        LinearMaker,
        MatrixShape,
    )

_logger = logging.getLogger(__name__)

_ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
# So many runs of each at least, and more of what is quick.
_LEAST_REPEATS, _ENOUGH_S = 3, 0.01
# Enough of them that weights come from memory and not from the last level cache, as in a step.
_CACHE_BYTES = 64 << 20
_MOST_MATRICES = 4
# What one product may take: more rows than that tell nothing new.
_LONG_S = 0.02
# What it may cost, on average, that all steps have the same kernels: then a text has the same bits
# whatever it shares its steps with.
_SAME_BITS_COST = 0.03
# Calm: half of the runs took little longer than the quickest (on two cores at most 1.4 times where
# nothing else ran, 1.7 to 4.8 times where much did), and the thread had a core: alone for 0.99 of
# the time (0.42 where much ran), among threads that it waits for 0.41 (0.15).
_MOST_SPREAD, _LEAST_CORE, _LEAST_SHARED_CORE = 1.5, 0.7, 0.3
# So long what was not measured calmly counts: each start of many would measure for seconds.
_PASSING_S = 3600


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds: of the wall, of the calling thread on a core, and since 1970."""

    wall: Callable[[], float] = time.perf_counter
    core: Callable[[], float] = time.thread_time
    date: Callable[[], float] = time.time


_CLOCKS = Clocks()


@dataclass(frozen=True, slots=True)
class _Measured:
    """Up to how many rows. measured_at_s: when, of what was not measured calmly."""

    most_rows: int
    measured_at_s: float | None = None

    def counts(self, now_s: float) -> bool:
        """Whether it need not be measured anew."""
        return self.measured_at_s is None or 0 <= now_s - self.measured_at_s < _PASSING_S


@torch.inference_mode()
def choose_kernels(
    maker: LinearMaker, most_rows: int | None = None, clocks: Clocks = _CLOCKS
) -> None:
    """Set every choice of a model: from the machine's file, or measured now and written there.

    most_rows: of all choices, as an operator wants it; None as it is measured.
    """
    kernels = maker.kernels
    if kernels is None or not maker.made:
        return
    if most_rows is not None:
        for choice in maker.choices:
            choice.most_rows = min(most_rows, kernels.most_rows)
        return
    path = kernels.choices_file
    known = _read(path)
    measured: dict[str, _Measured] = {}
    for shape, linears in maker.made.items():
        found = known.get(_name(shape, maker.dtype))
        if found is None or not found.counts(clocks.date()):
            found = _measure(linears, maker.dtype, kernels.most_rows, clocks)
            measured[_name(shape, maker.dtype)] = found
        linears[0].choice.most_rows = found.most_rows
    if measured:
        # Read again: other processes measure other shapes meanwhile.
        _write(path, _read(path) | measured)


def _measure(
    linears: Sequence[ChosenLinear], dtype: torch.dtype, limit: int, clocks: Clocks
) -> _Measured:
    """See `_most_rows`; tried again where the machine was not calm."""
    most_rows, is_calm = _most_rows(linears, dtype, limit, clocks)
    if not is_calm:
        most_rows, is_calm = _most_rows(linears, dtype, limit, clocks)
    if is_calm:
        return _Measured(most_rows)
    _logger.info("kernels are chosen for an hour: other programs took the machine")
    return _Measured(most_rows, clocks.date())


def _most_rows(
    linears: Sequence[ChosenLinear], dtype: torch.dtype, limit: int, clocks: Clocks
) -> tuple[int, bool]:
    """Up to how many rows the engine's kernels are to be taken: the limit that costs least.

    limit: that the kernels are for. If it is none (`ALL_ROWS`), there is none where that costs
    hardly more. All row counts together decide, so that one that was disturbed does not. And
    whether all were measured calmly.
    """
    shape, device = linears[0].choice.shape, linears[0].many.device
    size = shape.num_rows_out * shape.num_columns_in * dtype.itemsize
    enough = max(1, _CACHE_BYTES // size)
    some = linears[: min(enough, _MOST_MATRICES)]
    gain, best_gain, most_rows, may_cost, is_calm = 0.0, 0.0, 0, 0.0, True
    for num_rows in (rows for rows in _ROWS if rows <= limit):
        x = torch.ones((num_rows, shape.num_columns_in), dtype=dtype, device=device)
        few, many = (
            _Run([getattr(linear, name) for linear in some], x, clocks) for name in ("few", "many")
        )
        # Taken in turns, so that what else the machine does befalls both.
        while len(few.times_s) < _LEAST_REPEATS or few.spent_s + many.spent_s < _ENOUGH_S:
            few.take()
            many.take()
        gain += math.log(many.best_s / few.best_s)
        may_cost += math.log1p(_SAME_BITS_COST)
        is_calm &= few.is_calm and many.is_calm
        if gain > best_gain:
            best_gain, most_rows = gain, num_rows
        if few.best_s > _LONG_S * len(some):
            break
    is_none = limit == ALL_ROWS and gain >= best_gain - may_cost
    return (ALL_ROWS if is_none else most_rows), is_calm


class _Run:
    """Runs products one after the other, and keeps how many seconds that took.

    On a GPU as a graph, which is how decode steps run: otherwise launches are what is measured.
    """

    def __init__(self, linears: Sequence[Linear], x: torch.Tensor, clocks: Clocks) -> None:
        self._linears = linears
        self._x = x
        self._clocks = clocks
        self._run = self._products
        self._least_core = _LEAST_CORE if torch.get_num_threads() == 1 else _LEAST_SHARED_CORE
        if x.device.type != "cpu":
            self._least_core = 0.0  # who waits for a GPU may sleep
            from flowforge.engine.graphs import CudaCapture

            _, replay = CudaCapture(x.device)(self._products)

            def replayed() -> torch.Tensor:
                replay()
                torch.cuda.synchronize(x.device)
                return x

            self._run = replayed
            torch.cuda.synchronize(x.device)
        self.times_s: list[float] = []
        self._core_s = 0.0

    @property
    def spent_s(self) -> float:
        """Of all runs together."""
        return sum(self.times_s)

    @property
    def best_s(self) -> float:
        """Of the quickest."""
        return min(self.times_s)

    @property
    def is_calm(self) -> bool:
        """Whether other programs left the machine alone, as far as that shows."""
        is_even = median(self.times_s) <= _MOST_SPREAD * self.best_s
        return is_even and self._core_s >= self._least_core * self.spent_s

    def take(self) -> None:
        """One more."""
        core_s, start_s = self._clocks.core(), self._clocks.wall()
        self._run()
        self.times_s.append(self._clocks.wall() - start_s)
        self._core_s += self._clocks.core() - core_s

    def _products(self) -> torch.Tensor:
        return [linear(self._x) for linear in self._linears][-1]


def _name(shape: MatrixShape, dtype: torch.dtype) -> str:
    name = f"{shape.kind} {shape.num_rows_out}x{shape.num_columns_in}"
    return name if dtype == torch.float32 else f"{name} in {dtype}"


def _read(path: Path) -> dict[str, _Measured]:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # not there yet, or not whole: measured again
    if not isinstance(content, dict):
        return {}
    entries = cast("dict[object, object]", content)
    found = {str(name): _entry(entry) for name, entry in entries.items()}
    return {name: entry for name, entry in found.items() if entry is not None}


def _entry(content: object) -> _Measured | None:
    """What one entry of the file says: rows, or rows and when of what passes."""
    match content:
        case int(most_rows) if most_rows >= 0:
            return _Measured(most_rows)
        case [int(most_rows), int(measured_at_s) | float(measured_at_s)] if most_rows >= 0:
            return _Measured(most_rows, measured_at_s)
        case _:
            return None


def _write(path: Path, choices: dict[str, _Measured]) -> None:
    entries = {
        name: one.most_rows if one.measured_at_s is None else [one.most_rows, one.measured_at_s]
        for name, one in choices.items()
    }
    text = json.dumps(entries, indent=2, sort_keys=True) + "\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix=".choices-", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        _logger.info("the choice of kernels is not kept: %s", error)
