"""How much of something there will be: between a least and a most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Quantity:
    """least ≤ the real number ≤ most; most None: nothing bounds it."""

    least: int
    most: int | None

    @property
    def is_exact(self) -> bool:
        """Whether it is known."""
        return self.least == self.most

    def __add__(self, other: Quantity) -> Quantity:
        """Both together."""
        is_bounded = self.most is not None and other.most is not None
        most = (self.most or 0) + (other.most or 0) if is_bounded else None
        return Quantity(self.least + other.least, most)

    def times(self, count: Quantity) -> Quantity:
        """So often."""
        least = self.least * count.least
        if self.most == 0 or count.most == 0:
            return Quantity(least, 0)
        is_bounded = self.most is not None and count.most is not None
        return Quantity(least, (self.most or 0) * (count.most or 0) if is_bounded else None)

    def at_most(self, limit: int | None) -> Quantity:
        """The same under one more limit."""
        if limit is None:
            return self
        most = limit if self.most is None else min(self.most, limit)
        return Quantity(min(self.least, most), most)

    def may_exceed(self, limit: int) -> bool:
        """Whether it can be more than `limit`."""
        return self.most is None or self.most > limit


NONE = Quantity(0, 0)
UNBOUNDED = Quantity(0, None)


def exactly(number: int) -> Quantity:
    """A number that is known."""
    return Quantity(number, number)


def total(quantities: Iterable[Quantity]) -> Quantity:
    """All together."""
    result = NONE
    for quantity in quantities:
        result = result + quantity
    return result


def one_of(quantities: Iterable[Quantity]) -> Quantity:
    """Whichever of them; at least one is given."""
    every = list(quantities)
    return Quantity(min(one.least for one in every), _most(every))


def longest(quantities: Iterable[Quantity]) -> Quantity:
    """The greatest of them; 0 without any."""
    every = list(quantities)
    return Quantity(max((one.least for one in every), default=0), _most(every))


def _most(quantities: list[Quantity]) -> int | None:
    mosts = [one.most for one in quantities if one.most is not None]
    return max(mosts, default=0) if len(mosts) == len(quantities) else None
