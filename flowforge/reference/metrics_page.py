"""The page of what is counted and measured: of a run, of a generation, of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.protocol import Usage
from flowforge.reference.docstrings import told_of
from flowforge.reference.events_page import field_rows
from flowforge.reference.markdown import MADE, code, table
from flowforge.runtime.events import Accounting, ModelAccounting
from flowforge.serving.metrics import COUNTERS, GAUGES, LATENCIES, PREFIX, REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = ("field", "type", "what it says")


def metrics_page() -> str:
    """Every figure with its unit and what it means."""
    server = table(("name", "type", "labels", "what it says"), _metrics())
    return f"""# Metrics and figures

{MADE}

## A run

Every run ends with a line of figures:

```text
prefilled 56 tokens (56 unique), reused 88, generated 74, pages at peak 9 of 2,912, 5.6 s
```

They are the `accounting` of its last [event](events.md). Tokens are those of the model; a KV page
holds the K and V of 16 tokens for all layers. A run prefills each distinct prompt token once:
`prefilled_tokens` is then `unique_prompt_tokens`.

{table(_HEAD, field_rows(Accounting))}

Each of `models`:

{table(_HEAD, field_rows(ModelAccounting))}

## A generation

`usage` of `step_finished`. {told_of(Usage).summary}

{table(_HEAD, field_rows(Usage))}

## A server

`GET /metrics` of `flowforge serve`, for Prometheus. Names are vLLM's with another prefix, so that
dashboards port. Every name begins with `{PREFIX}`; counters end in `_total` and count from the
server's start; a histogram of seconds has `_bucket`, `_count` and `_sum`.

{server}
"""


def _metrics() -> Iterator[tuple[str, str, str, str]]:
    label = code("model_name")
    for gauge in GAUGES:
        yield code(gauge.name), "gauge", label, gauge.help
    for counter in COUNTERS:
        yield code(f"{counter.name}_total"), "counter", label, counter.help
    name, what, labels = REQUESTS
    yield code(f"{name}_total"), "counter", ", ".join(map(code, labels)), what
    for latency in LATENCIES:
        yield code(latency.name), "histogram, seconds", label, latency.help
