"""All pages that are made from the code, by their names."""

from __future__ import annotations

from flowforge.reference.cli_page import cli_page
from flowforge.reference.codes_page import codes_page
from flowforge.reference.configuration_page import configuration_page
from flowforge.reference.events_page import events_page
from flowforge.reference.expressions_page import expressions_page
from flowforge.reference.http_page import http_page
from flowforge.reference.language_page import language_page
from flowforge.reference.metrics_page import metrics_page
from flowforge.reference.python_page import python_page


def pages() -> dict[str, str]:
    """The pages by their file names."""
    return {
        "cli.md": cli_page(),
        "codes.md": codes_page(),
        "configuration.md": configuration_page(),
        "events.md": events_page(),
        "expressions.md": expressions_page(),
        "http.md": http_page(),
        "language.md": language_page(),
        "metrics.md": metrics_page(),
        "python.md": python_page(),
    }
