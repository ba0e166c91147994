"""Where the journal of a user is, and what lies beside it."""

from __future__ import annotations

from pathlib import Path

from flowforge import environment
from flowforge.errors import EngineError


def default_journal() -> Path:
    """$FLOWFORGE_JOURNAL, or flowforge/runs.db under $XDG_STATE_HOME, or under ~/.local/state."""
    if (chosen := _chosen_journal()) is not None:
        return chosen
    state = environment.STATE_HOME.text() or "~/.local/state"
    return Path(state).expanduser().absolute() / "flowforge" / "runs.db"


def existing_journal(path: Path | None) -> Path:
    """Where to read runs: `path`, or the user's own journal, which may be yet to be made.

    Raises EngineError EN704 for a file that was named and is not there.
    """
    named = _chosen_journal() if path is None else path.expanduser().absolute()
    if named is None:
        return default_journal()
    if not named.exists():
        raise EngineError(
            "EN704",
            f"the journal {str(named)!r} is not there",
            help=f"check --journal and ${environment.JOURNAL.name}; 'flowforge run' makes the file "
            "that they name",
        )
    return named


def _chosen_journal() -> Path | None:
    chosen = environment.JOURNAL.text()
    return Path(chosen).expanduser().absolute() if chosen else None


def kv_folder_of(journal: Path) -> Path:
    """Where the KV is kept that runs of a journal go on with."""
    return journal.with_name(f"{journal.name}.kv")
