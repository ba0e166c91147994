"""What paths have in common: the pages that several sequences of one step read.

The tree of a step's paths with its chains fused (RadixAttention's tree, seen from its readers):
each run of pages that the same paths walk through, and no others, is one entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.path import KvPath


@dataclass(frozen=True, slots=True)
class SharedRun:
    """Pages [first_page, stop_page) of several paths are the same ones.

    readers: the indices of those paths, two or more, ascending.
    """

    first_page: int
    stop_page: int
    readers: tuple[int, ...]

    @property
    def num_pages(self) -> int:
        """Pages of the run, once."""
        return self.stop_page - self.first_page

    @property
    def num_reread(self) -> int:
        """Pages that the readers read again when each reads for itself."""
        return (len(self.readers) - 1) * self.num_pages


class Sharing:
    """Finds the shared runs of each step's paths, and knows them while the same paths run on.

    A live path's full pages only grow in number, so what paths had in common they still have; what
    they have in common from now on is seen when one of them has another full page.
    """

    def __init__(self) -> None:
        self._paths: list[KvPath] = []
        self._num_nodes: list[int] = []
        self._runs: tuple[SharedRun, ...] = ()

    def runs(self, paths: list[KvPath]) -> tuple[SharedRun, ...]:
        """`shared_runs` of live paths; kept until the paths or their full pages are others."""
        num_nodes = [len(path.nodes) for path in paths]
        if num_nodes != self._num_nodes or paths != self._paths:
            self._runs = shared_runs([path.nodes for path in paths])
            self._paths, self._num_nodes = paths, num_nodes
        return self._runs


def shared_runs(paths: Sequence[Sequence[Node]]) -> tuple[SharedRun, ...]:
    """The runs of nodes that two or more of these paths share, from the roots on.

    Paths that part never meet again, so where two part is found by bisection:
    O(paths · log(depth)) for each level of forks, whatever the context's length.
    """
    runs: list[SharedRun] = []
    groups: list[tuple[list[int], int]] = [(list(range(len(paths))), 0)] if len(paths) > 1 else []
    while groups:
        group, depth = groups.pop()
        by_next: dict[int, list[int]] = {}
        for reader in group:
            if len(paths[reader]) > depth:
                by_next.setdefault(id(paths[reader][depth]), []).append(reader)
        for readers in by_next.values():
            if len(readers) > 1:
                first = paths[readers[0]]
                common = min(_parting(first, paths[other], depth) for other in readers[1:])
                runs.append(SharedRun(depth, common, tuple(readers)))
                groups.append((readers, common))
    return tuple(runs)


def _parting(a: Sequence[Node], b: Sequence[Node], low: int) -> int:
    """The first depth at which two paths differ; at `low` they do not."""
    high = min(len(a), len(b))
    while low < high:
        middle = (low + high) // 2
        if a[middle] is b[middle]:
            low = middle + 1
        else:
            high = middle
    return low
