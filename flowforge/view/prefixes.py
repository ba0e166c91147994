"""Who continues whom: the conversations of a run as a tree of prefixes, with what each computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.view.step_tree import last_tries

if TYPE_CHECKING:
    from flowforge.runtime.picture import StepPicture
    from flowforge.view.run_view import RunView


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """A generation in the tree. Tokens are None until it has ended.

    shared_tokens: of its prompt that were in the cache. own_tokens: computed for it. num_forks: how
    many conversations go on from its end.
    """

    path: str
    depth: int
    status: str
    shared_tokens: int | None
    own_tokens: int | None
    generated_tokens: int
    num_forks: int


def prefix_rows(view: RunView) -> list[PrefixRow]:
    """The conversations from their beginnings on, in the order of their starts."""
    steps = {step.path: step for step in last_tries(view.picture) if step.verb == "gen"}
    forks: dict[str | None, list[StepPicture]] = {}
    for step in steps.values():
        parent = step.continues if step.continues in steps else None
        forks.setdefault(parent if parent != step.path else None, []).append(step)
    rows: list[PrefixRow] = []
    waiting = [(step, 0) for step in reversed(forks.get(None, []))]
    placed: set[str] = set()
    while waiting:
        step, depth = waiting.pop()
        if step.path in placed:
            continue
        placed.add(step.path)
        own = forks.get(step.path, [])
        rows.append(_row(view, step, depth, len(own)))
        waiting += [(one, depth + 1) for one in reversed(own)]
    return rows


def _row(view: RunView, step: StepPicture, depth: int, num_forks: int) -> PrefixRow:
    usage, text = step.usage, view.texts.get(step.path)
    if usage is None:
        num_tokens = 0 if text is None else text.num_tokens
        return PrefixRow(step.path, depth, step.status, None, None, num_tokens, num_forks)
    return PrefixRow(
        step.path,
        depth,
        step.status,
        usage.reused_tokens,
        usage.prefilled_tokens,
        usage.generated_tokens,
        num_forks,
    )
