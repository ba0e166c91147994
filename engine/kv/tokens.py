"""Comparing runs of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def common_prefix_len(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences of one type share.

    Gallops over slices, which compare at C speed, and then bisects: O(result), small constant.
    """
    limit = min(len(a), len(b))
    known, stride = 0, 16
    while known < limit and a[known : known + stride] == b[known : known + stride]:
        known = min(known + stride, limit)
        stride *= 2
    low, high = known, min(known + stride, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
