"""What can be done about a run as it is seen: what a cancel would stop, what can be run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.view.step_tree import bare_path

if TYPE_CHECKING:
    from flowforge.view.run_view import RunView
    from flowforge.view.sources import Link


@dataclass(frozen=True, slots=True)
class Restart:
    """A way to run something again. arguments: of `flowforge`."""

    label: str
    arguments: tuple[str, ...]


def num_running_in(view: RunView, path: str) -> int:
    """How many steps run under a path, which is of a step or of a branch."""
    return sum(
        step.ended_s is None and is_within(name, path) for name, step in view.picture.steps.items()
    )


def restarts(view: RunView, link: Link, run_id: str, path: str) -> list[Restart]:
    """What can be run again, the least first. path: of the chosen step, or ""."""
    offers: list[Restart] = []
    if link in {"cut", "recorded"} and view.picture.status != "done":
        what = "tries again what failed" if view.picture.status == "failed" else "goes on"
        offers.append(Restart(f"resume this run: it {what}", ("resume", run_id)))
    step = view.picture.steps.get(path)
    if step is not None and step.ended_s is not None:
        name = bare_path(path)
        arguments = ("rerun", run_id, "--from", name)
        offers.append(Restart(f"a new run from {name} on, with what came before it", arguments))
    return offers


def is_within(path: str, outer: str) -> bool:
    """Whether a path is `outer`, or inside of it."""
    return bool(outer) and (path == outer or path.startswith((f"{outer}/", f"{outer}[")))
