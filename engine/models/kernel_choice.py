"""Which kernel is quicker on this machine, for each shape and number of rows: measured once, kept.

Kept so that a second start costs nothing, and so that the same run takes the same kernels and gives
the same bits.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from pathlib import Path
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


@torch.inference_mode()
def choose_kernels(maker: LinearMaker, most_rows: int | None = None) -> None:
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
    measured: dict[str, int] = {}
    for shape, linears in maker.made.items():
        found = known.get(_name(shape, maker.dtype))
        if found is None:
            found = _most_rows(linears, maker.dtype, kernels.most_rows)
            measured[_name(shape, maker.dtype)] = found
        linears[0].choice.most_rows = found
    if measured:
        # Read again: other processes measure other shapes meanwhile.
        _write(path, _read(path) | measured)


def _most_rows(linears: Sequence[ChosenLinear], dtype: torch.dtype, limit: int) -> int:
    """Up to how many rows the engine's kernels are to be taken: the limit that costs least.

    limit: that the kernels are for. If it is none (`ALL_ROWS`), there is none where that costs
    hardly more. All row counts together decide, so that one that was disturbed does not.
    """
    shape, device = linears[0].choice.shape, linears[0].many.device
    size = shape.num_rows_out * shape.num_columns_in * dtype.itemsize
    enough = max(1, _CACHE_BYTES // size)
    some = linears[: min(enough, _MOST_MATRICES)]
    gain, best_gain, most_rows, may_cost = 0.0, 0.0, 0, 0.0
    for num_rows in (rows for rows in _ROWS if rows <= limit):
        x = torch.ones((num_rows, shape.num_columns_in), dtype=dtype, device=device)
        gain += _gain(some, x)
        may_cost += math.log1p(_SAME_BITS_COST)
        if gain > best_gain:
            best_gain, most_rows = gain, num_rows
        if _run([some[0].few], x)() > _LONG_S:
            break
    is_none = limit == ALL_ROWS and gain >= best_gain - may_cost
    return ALL_ROWS if is_none else most_rows


def _gain(linears: Sequence[ChosenLinear], x: torch.Tensor) -> float:
    """The logarithm of torch's time over the kernels'."""
    few, many = (_run([getattr(linear, name) for linear in linears], x) for name in ("few", "many"))
    few_s, many_s = float("inf"), float("inf")
    # Taken in turns, so that what else the machine does befalls both.
    num_runs, spent_s = 0, 0.0
    while num_runs < _LEAST_REPEATS or spent_s < _ENOUGH_S:
        once = [few(), many()]
        few_s, many_s = min(few_s, once[0]), min(many_s, once[1])
        num_runs, spent_s = num_runs + 1, spent_s + sum(once)
    return math.log(many_s / few_s)


def _run(linears: Sequence[Linear], x: torch.Tensor) -> Callable[[], float]:
    """Runs products one after the other, and says how many seconds that took.

    On a GPU as a graph, which is how decode steps run: otherwise launches are what is measured.
    """

    def products() -> torch.Tensor:
        return [linear(x) for linear in linears][-1]

    if x.device.type == "cpu":
        return lambda: _seconds(products)
    from flowforge.engine.graphs import CudaCapture

    _, replay = CudaCapture(x.device)(products)

    def replayed() -> None:
        replay()
        torch.cuda.synchronize(x.device)

    torch.cuda.synchronize(x.device)
    return lambda: _seconds(replayed)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _name(shape: MatrixShape, dtype: torch.dtype) -> str:
    name = f"{shape.kind} {shape.num_rows_out}x{shape.num_columns_in}"
    return name if dtype == torch.float32 else f"{name} in {dtype}"


def _read(path: Path) -> dict[str, int]:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # not there yet, or not whole: measured again
    if not isinstance(content, dict):
        return {}
    entries = cast("dict[object, object]", content)
    return {
        str(name): most_rows
        for name, most_rows in entries.items()
        if isinstance(most_rows, int) and most_rows >= 0
    }


def _write(path: Path, choices: dict[str, int]) -> None:
    text = json.dumps(choices, indent=2, sort_keys=True) + "\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix=".choices-", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        _logger.info("the choice of kernels is not kept: %s", error)
