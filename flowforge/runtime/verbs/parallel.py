"""`parallel`: named blocks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.join_policies import All
from flowforge.language.program import Parallel
from flowforge.runtime.joins import join_branches, picks_one
from flowforge.runtime.verbs.branches import end_of_branch
from flowforge.runtime.verbs.rules import Finish, OpenBranch, Reaction, VerbRules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import Step
    from flowforge.runtime.joins import End
    from flowforge.runtime.verbs.rules import BranchEnd, StepContext


class ParallelRules(VerbRules[Parallel]):
    """Opens every branch; its memory is the ends of branches by name."""

    word = "parallel"

    def bodies(self, verb: Parallel) -> Mapping[str, Mapping[str, Step]]:
        """One block per branch."""
        return {name: block.steps for name, block in verb.branches.items()}

    def fails_fast(self, verb: Parallel) -> bool:
        """Only under `all`."""
        return isinstance(verb.join, All)

    def segment(self, verb: Parallel, body: str) -> str:
        """A branch written as one step has that step's path and no level of its own."""
        return "" if list(verb.branches[body].steps) == [body] else f"/{body}"

    def start(self, verb: Parallel, context: StepContext) -> Reaction:
        """Open all branches."""
        names = list(verb.branches)
        if not names:
            return _decide(verb, context, {})
        branches = (
            OpenBranch(name, self.segment(verb, name), name, {}, is_last=name == names[-1])
            for name in names
        )
        return Reaction({}, tuple(branches))

    def branch_ended(
        self, verb: Parallel, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """Join if that can be done."""
        assert isinstance(memory, dict)
        ends: dict[str, End] = {**memory, end.key: end_of_branch(verb.branches[end.key], end)}
        return _decide(verb, context, ends)


def _decide(verb: Parallel, context: StepContext, ends: dict[str, End]) -> Reaction:
    joined = join_branches(verb.join, list(verb.branches), ends, context.scope)
    if joined is None:
        return Reaction(ends, ())
    if picks_one(verb.join):
        return Reaction(ends, (Finish(joined.values[0][1]),))
    return Reaction(ends, (Finish(dict(joined.values)),))
