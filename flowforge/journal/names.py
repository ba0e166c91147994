"""Names of runs: short enough to be typed, in the order in which the runs began."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def new_run_id(now: datetime | None = None) -> str:
    """For example `1130-0956-7f3a2c`: month and day, time in UTC, and something drawn."""
    moment = now or datetime.now(UTC)
    return f"{moment:%m%d-%H%M}-{secrets.token_hex(3)}"
