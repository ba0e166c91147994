"""20,000 random operations on the core; benchmarks/soak_random_operations.py does a million."""

from __future__ import annotations

import pytest
from random_operations import Driver


@pytest.mark.parametrize("seed", range(4))
def test_no_operation_ever_shows_in_what_a_sequence_reads(seed: int) -> None:
    driver = Driver(seed)

    driver.run(5_000)

    assert driver.kv.statistics().evicted_pages > 0, "the pool was never short"
    assert driver.core.statistics().scheduler.num_preemptions > 0
    host = driver.kv.statistics().host
    assert host.pages_total == 0 or host.restored_pages > 0, "nothing came back from the host"
