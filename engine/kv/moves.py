"""What is done with rows before a step's forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.engine.kv.host_tier import Offload, Restore

if TYPE_CHECKING:
    from flowforge.engine.kv.pool import PageId


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Copy the first `num_rows` rows of a page, in all layers, into another.

    Must be carried out before anything else is asked of the cache that could free the source page
    *and* write to it: in the order received, before the step's forward pass, is enough.
    """

    source: PageId
    target: PageId
    num_rows: int


RowMove: TypeAlias = RowCopy | Offload | Restore
"""In the order in which it was asked for."""
