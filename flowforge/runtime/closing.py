"""Conversations given back, whatever goes on around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from flowforge.runtime.failures import as_flowforge_error
from flowforge.runtime.state import Failure

if TYPE_CHECKING:
    from flowforge.backends.protocol import Conversation


async def close_conversation(
    conversation: Conversation, path: str, failures: list[Failure]
) -> None:
    """Close one, cancelled or not; failures: gets what its backend says against it."""
    try:
        with anyio.CancelScope(shield=True):
            await conversation.close()
    except Exception as error:
        failures.append(Failure(path, as_flowforge_error(error)))
