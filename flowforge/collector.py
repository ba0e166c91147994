"""Python's cyclic garbage collector, out of the way of work that makes objects and no garbage."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def resting_collector() -> Generator[None]:
    """Collect nothing within the block: the collector walks what stays again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
