"""Draws by counter are those of numpy's Philox."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from flowforge.engine.random_draw import uniform_draw

WORDS = st.integers(0, 2**64 - 1)


@given(seed=st.integers(0, 2**128 - 1), branch=WORDS, position=WORDS)
@example(0, 0, 0)
@example(1, 2, 2**64 - 1)
@example(2**128 - 1, 2**64 - 1, 2**64 - 1)
def test_a_draw_is_the_first_of_a_generator_at_its_place(
    seed: int, branch: int, position: int
) -> None:
    key = np.array([seed % 2**64, seed >> 64], dtype=np.uint64)
    counter = np.array([position, branch, 0, 0], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))

    assert generator.random() == uniform_draw(seed, branch, position)
