"""Which formats are enforced, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue

MASKED = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)


def is_masked(name: JsonValue) -> bool:
    """Whether the mask enforces a format (llguidance 1.9)."""
    return name in MASKED


def asks_judge_only(name: JsonValue) -> bool:
    """Whether a format that the mask does not know is known to the judge of finished answers.

    One that neither knows is an annotation, as JSON Schema has it: int32, byte, path …
    """
    # Here and not above: the import is slow, and such formats are rare.
    from jsonschema.validators import Draft202012Validator

    return name in Draft202012Validator.FORMAT_CHECKER.checkers
