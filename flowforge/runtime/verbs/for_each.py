"""`for`: a block once per item, at most `limit` items at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.language.join_policies import All
from flowforge.language.json_values import kind_of_value
from flowforge.language.program import ForEach
from flowforge.runtime.joins import join_branches, needs_all, picks_one
from flowforge.runtime.verbs.branches import end_of_branch
from flowforge.runtime.verbs.rules import Finish, OpenBranch, Reaction, VerbRules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Step
    from flowforge.runtime.joins import End
    from flowforge.runtime.verbs.rules import BranchEnd, StepContext

_BODY = "do"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ends:
    """How branches ended, the newest first: one more costs the same however many there are."""

    num: int = 0
    index: int = 0
    end: End | None = None
    earlier: Ends | None = None

    def followed_by(self, index: int, end: End) -> Ends:
        """One more end."""
        return Ends(self.num + 1, index, end, self)

    def by_index(self) -> dict[int, End]:
        """All of them."""
        ends: dict[int, End] = {}
        at: Ends | None = self
        while at is not None and at.end is not None:
            ends[at.index] = at.end
            at = at.earlier
        return ends


@dataclass(frozen=True, slots=True)
class ForEachMemory:
    """The items, how many of them have been opened as branches, and how branches ended."""

    items: tuple[JsonValue, ...]
    num_opened: int
    ends: Ends = field(default_factory=Ends)


class ForEachRules(VerbRules[ForEach]):
    """Opens items in order as room becomes free; results stay in item order."""

    word = "for"

    def bodies(self, verb: ForEach) -> Mapping[str, Mapping[str, Step]]:
        """The block under `do`."""
        return {_BODY: verb.body.steps}

    def fails_fast(self, verb: ForEach) -> bool:
        """Only under `all`."""
        return isinstance(verb.join, All)

    def start(self, verb: ForEach, context: StepContext) -> Reaction:
        """Evaluate the list and open the first items."""
        items = verb.items.evaluate(context.scope)
        if not isinstance(items, list):
            raise WorkflowError(
                "WF503",
                f"step {context.path!r} goes over {kind_of_value(items)}, expected a list",
                location=verb.items.location,
                help="give 'for' a list, for example a step with json: { type: array }",
            )
        if not items:
            return _decide(verb, context, ForEachMemory((), 0))
        # Fails where there are fewer items than it needs, before the first of them costs anything.
        join_branches(verb.join, range(len(items)), {}, context.scope)
        num_first = len(items) if verb.limit is None else min(verb.limit, len(items))
        memory = ForEachMemory(tuple(items), num_first)
        return Reaction(memory, tuple(_branch(verb, memory, idx) for idx in range(num_first)))

    def branch_ended(
        self, verb: ForEach, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """Join if that can be done, else open the next item."""
        assert isinstance(memory, ForEachMemory)
        ends = memory.ends.followed_by(int(end.key), end_of_branch(verb.body, end))
        return _decide(verb, context, ForEachMemory(memory.items, memory.num_opened, ends))


def _decide(verb: ForEach, context: StepContext, memory: ForEachMemory) -> Reaction:
    items = memory.items
    joined = None
    if not needs_all(verb.join) or memory.ends.num == len(items):
        ends = memory.ends.by_index()
        joined = join_branches(verb.join, range(len(items)), ends, context.scope)
    if joined is not None:
        values = [value for _, value in joined.values]
        return Reaction(memory, (Finish(values[0] if picks_one(verb.join) else values),))
    if memory.num_opened == len(items):
        return Reaction(memory, ())
    opened = ForEachMemory(items, memory.num_opened + 1, memory.ends)
    return Reaction(opened, (_branch(verb, memory, memory.num_opened),))


def branch_of(verb: ForEach, index: int, item: JsonValue, *, is_last: bool) -> OpenBranch:
    """The branch for an item of the list."""
    return OpenBranch(str(index), f"[{index}]", _BODY, {verb.variable: item}, is_last)


def _branch(verb: ForEach, memory: ForEachMemory, index: int) -> OpenBranch:
    is_last = index + 1 == len(memory.items)
    return branch_of(verb, index, memory.items[index], is_last=is_last)
