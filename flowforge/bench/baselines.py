"""Policies to compare: the same engine, with less of what it can do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowforge.engine.policy import SchedulingPolicy
from flowforge.runtime.policy import WHOLE_POLICY, RunPolicy

if TYPE_CHECKING:
    from flowforge.engine.config import SharedAttention

_NOTHING = SchedulingPolicy(
    reuse="none",
    admission="arrival",
    spares_duplicates=False,
    shares_logits=False,
    eviction="lru",
    spares_output=False,
    critical_first=False,
)
_FLOW = SchedulingPolicy()
_TELLS_NOTHING = RunPolicy(
    foresees_branches=False, tells_chains=False, prepares_prompts=False, expects_prompts=False
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """max_running: sequences in one step, None for as many as the run allows.

    shared_attention: as in `EngineConfig`. tells_next_use: whether the engine is told what coming
    calls begin with, and when they come. has_window: whether programs are begun as pages allow.
    speculates: whether tokens are guessed and checked together. run_policy: what the runtime makes
    of what it knows of programs; where the engine is told nothing, nothing.
    """

    name: str
    policy: SchedulingPolicy
    max_running: int | None = None
    shared_attention: SharedAttention = "off"
    tells_next_use: bool = False
    has_window: bool = False
    speculates: bool = False
    run_policy: RunPolicy = _TELLS_NOTHING


_ALL = Baseline(
    "flow",
    _FLOW,
    None,
    "auto",
    tells_next_use=True,
    has_window=True,
    speculates=True,
    run_policy=WHOLE_POLICY,
)


def _without(part: str, policy: SchedulingPolicy) -> Baseline:
    return replace(_ALL, name=f"flow-{part}", policy=policy)


BASELINES: dict[str, Baseline] = {
    one.name: one
    for one in (
        Baseline("serial", _NOTHING, max_running=1),
        Baseline("batch", _NOTHING),
        Baseline("block16", replace(_NOTHING, reuse="pages", spares_duplicates=True)),
        Baseline("radix", replace(_NOTHING, reuse="tokens", admission="prefix")),
        _ALL,
        _without("duplicates", replace(_FLOW, spares_duplicates=False)),
        _without("logits", replace(_FLOW, shares_logits=False)),
        _without("order", replace(_FLOW, admission="arrival")),
        _without("next_use", replace(_FLOW, eviction="lru")),
        _without("spared_output", replace(_FLOW, spares_output=False)),
        _without("critical", replace(_FLOW, critical_first=False)),
        _without("last_use", replace(_FLOW, frees_last_uses=False)),
        replace(_ALL, name="flow-window", has_window=False),
        replace(_ALL, name="flow-shared_reads", shared_attention="off"),
        replace(_ALL, name="flow-speculation", speculates=False),
        replace(_ALL, name="flow-preparing", run_policy=RunPolicy(prepares_prompts=False)),
        replace(_ALL, name="flow-expecting", run_policy=RunPolicy(expects_prompts=False)),
    )
}
"""By name. serial: one call at a time, nothing is used again. batch: continuous batching, nothing
is used again. block16: full pages are used again, as by servers that know them by their hashes:
prompts that come together hit pages that another is about to compute, the last page of a prompt
that is there whole is computed again, and what was used longest ago is evicted. radix: every
token is used again, the longest cached prefix goes first, prompts that come together are each
computed. flow: all that the engine can do. flow-PART: the same without a part.
"""

MAIN_BASELINES = ("serial", "batch", "block16", "radix", "flow")
