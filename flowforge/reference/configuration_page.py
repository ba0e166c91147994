"""The page of all that is set outside of workflows: files, their keys, environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.routing.route import ROUTE_KEYS, RULE_KEYS, SHADOW_KEYS
from flowforge.configuration.file import FILE_NAME
from flowforge.environment import GROUPS
from flowforge.language.remote_models import MODEL_KEYS
from flowforge.reference.markdown import MADE, code, table
from flowforge.serving.keys import KeyEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILES = {
    "`flowforge.toml`": "Models of other servers, and routes: below.",
    "`flowforge.schema.json`": "The JSON Schema of workflow files, for editors: `flowforge init` "
    "and `flowforge schema` write it beside them.",
    "`keys.toml`": "Who may ask a server, below: `flowforge keys`, `flowforge serve --keys`.",
    "`~/.cache/flowforge/`": "Whatever can be fetched or made again: `models/` has models, each in "
    "a folder of its own, `native/` compiled kernels. `$FLOWFORGE_HOME` is another folder.",
    "`~/.local/state/flowforge/runs.db`": "The journal: runs as they go, results of steps with "
    "`cache`, readable by you alone. `$FLOWFORGE_JOURNAL` or `--journal` is another file. Beside "
    "it, `runs.db.locks/` has the leases and sockets of runs that go on, `runs.db.kv/` KV that "
    "runs go on with.",
    "`~/.config/flowforge/keys.json`": "Keys of the viewer: [the viewer](tui.md).",
}


def configuration_page() -> str:
    """Files, keys and variables."""
    files = table(("file", "what it holds"), _FILES.items())
    variables = "\n\n".join(
        f"### {title}\n\n"
        + table(("variable", "what it says"), ((code(one.name), one.meaning) for one in group))
        for title, group in GROUPS.items()
    )
    return f"""# Configuration

{MADE}

A workflow says all that its result depends on; what stands here says where things are. Options of a
command go before variables of the environment.

## Files and folders

{files}

## {FILE_NAME}

The nearest one is read: in the workflow's folder, in one above it, or where the command runs.
Unknown keys are errors. [Other servers](backends.md) has examples.

```toml
[models.big]
url = "http://gpu:8000/v1"
model = "Qwen/Qwen3-32B"
dialect = "vllm"

[routes.main]
weights = {{ "remote/big" = 95, "engine" = 5 }}
fallback = ["engine"]
```

`[models.NAME]` is a model that steps name `remote/NAME`:

{_keys(MODEL_KEYS)}

`[routes.NAME]` is a way to one of several models, which steps name `route/NAME`. Models are
`remote/NAME`, or `engine` for the one of this process:

{_keys(ROUTE_KEYS)}

Each of `rules`:

{_keys(RULE_KEYS)}

`shadow`:

{_keys(SHADOW_KEYS)}

## keys.toml

`flowforge keys` writes it: a table `[[keys]]` for each key, which itself stands nowhere.

{_keys({name: field.description or "" for name, field in KeyEntry.model_fields.items()})}

## Environment variables

{variables}
"""


def _keys(meanings: Mapping[str, str]) -> str:
    return table(("key", "what it says"), ((code(key), what) for key, what in meanings.items()))
