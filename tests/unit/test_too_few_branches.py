"""A join with fewer branches than it needs says so, and does not point at failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from programs import expr

from flowforge.errors import WorkflowError
from flowforge.language.join_policies import Best, First, Quorum, Vote
from flowforge.runtime.joins import Value, join_branches

if TYPE_CHECKING:
    from flowforge.language.join_policies import Join


@pytest.mark.parametrize("join", [First(), Quorum(1), Vote(), Best(expr("value"))])
def test_no_branches_are_told_as_too_few(join: Join) -> None:
    with pytest.raises(
        WorkflowError, match="needs 1 that succeed, and there are 0 branches"
    ) as told:
        join_branches(join, list[int](), {}, {})

    assert "WF507" == told.value.code
    assert "a list with more items" in str(told.value.help)


def test_a_quorum_above_the_branches_is_told_before_any_fails() -> None:
    with pytest.raises(WorkflowError, match="needs 2 that succeed, and there is 1 branch"):
        join_branches(Quorum(2), [0], {0: Value("a")}, {})
