"""The tool of the bench's workflows."""

from __future__ import annotations

import anyio


async def look_up(seconds: float, text: str) -> str:
    """Give the text, after so long."""
    await anyio.sleep(seconds)
    return text
