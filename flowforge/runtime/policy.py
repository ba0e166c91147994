"""What a run makes of what it knows of itself; each part can be turned off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """No result depends on it, only what is computed when.

    foresees_branches: the first generations of a `for`'s branches begin when their element of the
    list is there, while the rest of the list is being written. tells_chains: requests say what the
    longest chain of steps behind them may still write, and more goes first. prepares_prompts: while
    a run waits for tools or people only, what is known of the prompts that come next is computed.
    expects_prompts: the backend is told what coming prompts begin with, and when they come.
    """

    foresees_branches: bool = True
    tells_chains: bool = True
    prepares_prompts: bool = True
    expects_prompts: bool = True


WHOLE_POLICY = RunPolicy()
