"""What the scheduler makes of what it knows; each part can be turned off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from flowforge.engine.arguments import require

Reuse: TypeAlias = Literal["tokens", "pages", "none"]
Admission: TypeAlias = Literal["prefix", "arrival"]
Eviction: TypeAlias = Literal["next_use", "lru"]


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """No result depends on it, only what is computed again and when. Raises EngineError EN230.

    reuse: of computed prompts every token is used again, or full pages only and never the last
    token of a prompt (as servers do that know pages by their hash), or nothing. admission: of equal
    priority the longest cached prefix goes first, or who came first. spares_duplicates: a prompt
    waits while another computes what both begin with. shares_logits: equal prompts sample from the
    logits of one. eviction: what is needed last, as its holders say, goes first, or what was used
    longest ago, whatever they say. spares_output: who is admitted leaves room for what it and the
    running ones will still write, so that they need not be preempted. critical_first: who has more
    of its holder's program behind it goes earlier. frees_last_uses: pages whose last use was stated
    are free at its end, and do not wait to be evicted.
    """

    reuse: Reuse = "tokens"
    admission: Admission = "prefix"
    spares_duplicates: bool = True
    shares_logits: bool = True
    eviction: Eviction = "next_use"
    spares_output: bool = True
    critical_first: bool = True
    frees_last_uses: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("reuse", Reuse), ("admission", Admission), ("eviction", Eviction)):
            words, value = get_args(choices), getattr(self, name)
            require(value in words, name, f"one of {words}", value, "EN230")
