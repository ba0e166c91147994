"""Runs of adjacent pages: how attention reads a path with few slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.kv.pool import PageId


@dataclass(slots=True)
class Extent:
    """A run of adjacent pages: its rows are one slice of the KV tensors."""

    first_page: PageId
    num_pages: int


def push_page(extents: list[Extent], page: PageId) -> None:
    """Put a page behind the last one."""
    if extents and extents[-1].first_page + extents[-1].num_pages == page:
        extents[-1].num_pages += 1
    else:
        extents.append(Extent(page, 1))


def pop_pages(extents: list[Extent], num_pages: int) -> None:
    """Take so many pages from the end."""
    while num_pages:
        taken = min(num_pages, extents[-1].num_pages)
        extents[-1].num_pages -= taken
        num_pages -= taken
        if extents[-1].num_pages == 0:
            extents.pop()
