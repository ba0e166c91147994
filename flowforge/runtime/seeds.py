"""Random choices of a run as a pure function of its seed and of what they are for.

So that branches and samples differ, a run can be repeated, and no order of completion matters.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

_NUM_BITS = 63
_NUM_DRAWN_BITS = 48
"""Of a seed that nobody gave: short enough to be typed again, and exact in every JSON reader."""


def drawn_seed() -> int:
    """A seed for a run that was given none."""
    return secrets.randbits(_NUM_DRAWN_BITS)


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose, for example the path of a generation; 0 ≤ seed < 2**63."""
    digest = blake2b(f"{seed}/{purpose}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derived_fraction(seed: int, purpose: str) -> float:
    """A number in [0, 1) for one purpose."""
    return (derived_seed(seed, purpose) >> (_NUM_BITS - 53)) / 2**53
