"""Which formats are enforced, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue

MASKED = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)


_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

EXACT_PATTERNS: dict[str, str] = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}T{_TIME}(?:[.][0-9]{{1,6}})?{_ZONE}$",
}
"""Formats that the mask's own reading takes too widely: a year 0, a 31st of February, a second 60.
What these allow, every judge of dates accepts."""


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
