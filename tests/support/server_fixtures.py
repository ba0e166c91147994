"""A server that tests of HTTP share, one for each file. A file may have a `server` of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    import openai
    from served import Served


@pytest.fixture(scope="module")
def server() -> Generator[Served]:
    """A server on the spoken model."""
    # Here, because this file is read for all tests, and the clients take a second to import.
    from served import served

    with served() as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Served) -> Generator[openai.OpenAI]:
    """The official client of that server."""
    from served import openai_client

    with openai_client(server) as one:
        yield one
