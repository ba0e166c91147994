"""The steps of a run as rows of a tree: branches and iterations under their step, long ones folded.

Paths say what lies in what: `explore[1]/draft#2` is the second try of `draft` in branch 1 of
`explore`. A try that was followed by another one is not shown beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from flowforge.runtime.picture import RunPicture, StepPicture, StepStatus

MAX_BRANCHES_SHOWN = 8
"""A step with more branches or iterations is one row with counts until it is opened."""

_TRY = re.compile(r"#(\d+)$")
_ITEM = re.compile(r"\[\d+\]$")
_GRAVITY: tuple[StepStatus, ...] = ("asking", "failed", "running", "cancelled", "done", "skipped")


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A line of the tree. path: of the last try. step: None for a branch, which has only parts.

    counts: how many steps inside have each status, where they are folded away. is_open: None for
    rows without anything inside.
    """

    path: str
    label: str
    depth: int
    status: StepStatus
    step: StepPicture | None = None
    counts: Mapping[str, int] | None = None
    is_open: bool | None = None


@dataclass(slots=True)
class _Node:
    path: str
    label: str
    step: StepPicture | None = None
    parts: dict[str, _Node] = field(default_factory=dict[str, "_Node"])


def tree_rows(
    picture: RunPicture,
    *,
    opened: Collection[str] = (),
    closed: Collection[str] = (),
    statuses: Collection[StepStatus] = (),
) -> list[TreeRow]:
    """The rows from top to bottom.

    opened, closed: paths whose folding a user has chosen; the rest is folded by its size. statuses:
    only steps that have one of these, with what they lie in; all of them if empty.
    """
    root = _Node("", "")
    for step in last_tries(picture):
        if not statuses or step.status in statuses:
            _place(root, step, picture)
    rows: list[TreeRow] = []
    for part in root.parts.values():
        rows += _rows_of(part, 0, opened, closed, is_filtered=bool(statuses))
    return rows


@lru_cache(maxsize=65_536)
def parents_of(path: str) -> tuple[str, ...]:
    """The paths that a step lies in, the outermost first: `a`, `a[1]` for `a[1]/b`."""
    names: list[str] = []
    at = ""
    for part in path.split("/")[:-1]:
        at = f"{at}/{part}" if at else part
        bare = _ITEM.sub("", at)
        names += [bare, at] if bare != at else [at]
    own = bare_path(path)
    if _ITEM.search(own):
        names.append(_ITEM.sub("", own))
    return tuple(dict.fromkeys(names))


@lru_cache(maxsize=65_536)
def bare_path(path: str) -> str:
    """A path without the number of its try."""
    return _TRY.sub("", path)


def last_tries(picture: RunPicture) -> Iterator[StepPicture]:
    """The steps in the order of their first starts, each with its last try."""
    last: dict[str, StepPicture] = {}
    for path, step in picture.steps.items():
        bare = bare_path(path)
        if bare not in last or _num_try(path) >= _num_try(last[bare].path):
            last[bare] = step
    yield from last.values()


def tries_of(picture: RunPicture, path: str) -> list[StepPicture]:
    """All tries of a step, the first one first."""
    bare = bare_path(path)
    found = [step for name, step in picture.steps.items() if bare_path(name) == bare]
    return sorted(found, key=lambda step: _num_try(step.path))


def _num_try(path: str) -> int:
    number = _TRY.search(path)
    return 1 if number is None else int(number[1])


def _place(root: _Node, step: StepPicture, picture: RunPicture) -> None:
    node = root
    for path in parents_of(step.path):
        node = _part(node, path)
        node.step = node.step or picture.steps.get(path)
    own = _part(node, bare_path(step.path))
    own.path, own.step = step.path, step
    attempt = _TRY.search(step.path)
    if attempt is not None:
        own.label = f"{own.label.partition('#')[0]}#{attempt[1]}"


def _part(node: _Node, path: str) -> _Node:
    if path not in node.parts:
        node.parts[path] = _Node(path, _label(path, node.path))
    return node.parts[path]


def _label(path: str, within: str) -> str:
    bare = bare_path(within)
    rest = path.removeprefix(bare) if bare and path.startswith(bare) else path
    return rest.lstrip("/") or path


def _rows_of(
    node: _Node,
    depth: int,
    opened: Collection[str],
    closed: Collection[str],
    *,
    is_filtered: bool,
) -> Iterator[TreeRow]:
    parts = [*node.parts.values()]
    if not parts:
        yield TreeRow(node.path, node.label, depth, _status(node), node.step)
        return
    is_open = node.path in opened or (
        node.path not in closed and (len(parts) <= MAX_BRANCHES_SHOWN or is_filtered)
    )
    counts = None if is_open else Counter[str](_status(part) for part in parts)
    yield TreeRow(node.path, node.label, depth, _status(node), node.step, counts, is_open)
    if not is_open:
        return
    for part in parts:
        only = _only_part(part)
        if only is None:
            yield from _rows_of(part, depth + 1, opened, closed, is_filtered=is_filtered)
        else:
            # A branch of one step is that step: one row, not two.
            label = f"{part.label}/{only.label}"
            yield TreeRow(only.path, label, depth + 1, _status(only), only.step)


def _only_part(node: _Node) -> _Node | None:
    if node.step is not None or len(node.parts) != 1:
        return None
    only = next(iter(node.parts.values()))
    return None if only.parts else only


def _status(node: _Node) -> StepStatus:
    """A step's own status; a branch has the gravest of its parts."""
    if node.step is not None and node.step.ended_s is not None:
        return node.step.status
    return gravest(_statuses(node)) or "running"


def _statuses(node: _Node) -> Iterator[StepStatus]:
    if node.step is not None:
        yield node.step.status
    for part in node.parts.values():
        yield _status(part)


def gravest(statuses: Iterable[StepStatus]) -> StepStatus | None:
    """The status that asks most to be looked at; None of none."""
    found = set(statuses)
    return next((status for status in _GRAVITY if status in found), None)
