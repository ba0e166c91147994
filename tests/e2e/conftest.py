"""End to end on one event loop: the contract tests run the same seams on both, without a model."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """See above; a module may name the other loop."""
    return "asyncio"
