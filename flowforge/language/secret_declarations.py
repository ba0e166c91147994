"""The secrets that a workflow declares: names of environment variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flowforge.language.fields import texts_of

if TYPE_CHECKING:
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_secrets(entry: Entry | None, report: Report) -> tuple[str, ...]:
    """The names under `secrets:`."""
    found = [] if entry is None else texts_of(entry, report, "names")
    for name, span in found:
        if not _VARIABLE.fullmatch(name):
            message = f"secret name {name[:60]!r} is no name of an environment variable"
            report.error("WF105", message, span, "letters, digits and '_', as API_KEY")
    return tuple(name for name, _ in found)
