"""Tools whose work outlives the process: each call is a line of a file."""

from __future__ import annotations

from pathlib import Path

from flowforge.journal.failpoints import reach


def pay(ledger: str, what: str) -> str:
    """Write a line, which is never taken back."""
    _append(ledger, f"pay {what}")
    reach("tool")
    return f"paid {what}"


def look(ledger: str, what: str) -> str:
    """Fail at the first call for something, and find it at the next."""
    _append(ledger, f"look {what}")
    if Path(ledger).read_text(encoding="utf-8").count(f"look {what}\n") == 1:
        raise OSError("not there yet")
    return f"found {what}"


def find(ledger: str, what: str) -> list[str]:
    """Look for something."""
    _append(ledger, f"find {what}")
    return [f"{what} by the sea", f"{what} in the hills"]


def handle(ledger: str, code: str) -> str:
    """What a `catch` does."""
    _append(ledger, f"handle {code}")
    return f"handled {code}"


def refuse(ledger: str) -> str:
    """Fail always."""
    _append(ledger, "refuse")
    raise ValueError("never")


def clean(ledger: str) -> str:
    """What a `finally` does."""
    _append(ledger, "clean")
    return "cleaned"


def _append(ledger: str, line: str) -> None:
    with Path(ledger).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
