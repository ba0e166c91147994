"""All pages that are made from the code, by their names."""

from __future__ import annotations

from flowforge.language.reference_pages import pages as language_pages
from flowforge.reference.cli_page import cli_page
from flowforge.reference.configuration_page import configuration_page
from flowforge.reference.events_page import events_page
from flowforge.reference.http_page import http_page
from flowforge.reference.metrics_page import metrics_page
from flowforge.reference.python_page import python_page


def pages() -> dict[str, str]:
    """The pages by their file names."""
    return {
        **language_pages(),
        "cli.md": cli_page(),
        "configuration.md": configuration_page(),
        "events.md": events_page(),
        "http.md": http_page(),
        "metrics.md": metrics_page(),
        "python.md": python_page(),
    }
