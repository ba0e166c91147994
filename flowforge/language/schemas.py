"""What a checker of JSON Schemas reports; the language gives each problem its place in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """One problem. pointer: JSON pointer to the part of the schema at fault, "" for the whole.

    message: lower case, no full stop. severity "warning" lets the workflow run.
    """

    pointer: str
    message: str
    severity: Literal["error", "warning"] = "error"
    help: str | None = None
