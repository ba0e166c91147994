"""The map of KV pages as a viewer draws it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowforge.view.page_map import page_map


def test_a_cell_of_several_pages_shows_their_commonest_use_that_is_not_free() -> None:
    seen = page_map("f3p1s4t2c1f5", 4)

    assert seen is not None
    assert (4, ("private", "shared", "tree", "free")) == (seen.pages_per_cell, seen.cells)
    assert {"shared": 4, "tree": 2, "private": 1, "cached": 1, "free": 8} == seen.counts


def test_what_is_not_known_counts_as_free_and_nothing_is_no_map() -> None:
    seen = page_map("z2p1", 10)

    assert seen is not None
    assert ("free", "free", "private") == seen.cells
    assert page_map("", 10) is page_map("broken", 10) is page_map("p0", 10) is None


@given(
    st.lists(st.tuples(st.sampled_from("fptsc"), st.integers(1, 400)), min_size=1, max_size=40),
    st.integers(1, 60),
)
def test_a_map_has_as_many_cells_as_there_is_room_for(
    runs: list[tuple[str, int]], max_cells: int
) -> None:
    seen = page_map("".join(f"{letter}{num}" for letter, num in runs), max_cells)

    assert seen is not None
    assert seen.num_pages == sum(num for _, num in runs)
    assert len(seen.cells) == -(-seen.num_pages // seen.pages_per_cell) <= max_cells
