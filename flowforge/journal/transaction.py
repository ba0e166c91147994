"""Writes to a journal that are carried out together or not at all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Generator


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """What the block writes, all or nothing. Raises what SQLite and the block raise."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk may have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
