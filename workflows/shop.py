"""A tool for sql_analyst.yaml: a small shop in SQLite that can be read and not changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

ORDERS = (
    ("Ada", "lamp", 39.0, 1),
    ("Ada", "tea", 4.5, 6),
    ("Ben", "chair", 89.0, 2),
    ("Cem", "tea", 4.5, 2),
    ("Cem", "desk", 240.0, 1),
)
MAX_ROWS = 20


def query(sql: str) -> dict[str, object]:
    """Run one query on the orders. What SQLite says against it is part of the result."""
    with closing(sqlite3.connect(":memory:")) as shop:
        shop.execute(
            "CREATE TABLE orders (customer TEXT, product TEXT, price REAL, quantity INTEGER)"
        )
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ORDERS)
        shop.commit()
        shop.execute("PRAGMA query_only = ON")
        try:
            found = shop.execute(sql)
            columns = [column[0] for column in found.description]
            return {"columns": columns, "rows": [[*row] for row in found.fetchmany(MAX_ROWS)]}
        except sqlite3.Error as error:
            return {"error": str(error)}
