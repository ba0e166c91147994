"""Where the journal of a user is, and what lies beside it."""

from __future__ import annotations

import os
from pathlib import Path

JOURNAL_VARIABLE = "FLOWFORGE_JOURNAL"


def default_journal() -> Path:
    """$FLOWFORGE_JOURNAL, or flowforge/runs.db under $XDG_STATE_HOME, or under ~/.local/state."""
    if chosen := os.environ.get(JOURNAL_VARIABLE):
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser().absolute() / "flowforge" / "runs.db"


def kv_folder_of(journal: Path) -> Path:
    """Where the KV is kept that runs of a journal go on with."""
    return journal.with_name(f"{journal.name}.kv")
