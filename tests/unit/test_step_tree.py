"""How the steps of a run lie in each other, and which of them are folded away."""

from __future__ import annotations

from flowforge.runtime.events import (
    Event,
    Fact,
    StepAsked,
    StepFailed,
    StepFinished,
    StepRetried,
    StepStarted,
)
from flowforge.runtime.picture import RunPicture
from flowforge.view.step_tree import TreeRow, parents_of, tree_rows, tries_of


def picture_of(*facts: Fact) -> RunPicture:
    picture = RunPicture()
    for seq, fact in enumerate(facts):
        picture.take(Event(seq, float(seq), fact))
    return picture


def branches(num: int) -> list[Fact]:
    return [StepStarted(f"explore[{idx}]/draft", "gen") for idx in range(num)]


def lines(rows: list[TreeRow]) -> list[str]:
    return [f"{'  ' * row.depth}{row.label} {row.status}" for row in rows]


def test_branches_lie_under_their_step_one_row_each() -> None:
    picture = picture_of(
        StepStarted("angles", "gen"),
        StepFinished("angles", ["x"]),
        StepStarted("explore", "for"),
        *branches(2),
        StepFinished("explore[1]/draft", "y"),
    )

    expected = ["angles done", "explore running", "  [0]/draft running", "  [1]/draft done"]
    assert expected == lines(tree_rows(picture))


def test_many_branches_are_one_row_with_counts_until_opened() -> None:
    picture = picture_of(
        StepStarted("explore", "for"), *branches(9), StepFailed("explore[3]/draft", "WF1", "no")
    )

    (row,) = tree_rows(picture)
    assert (False, {"running": 8, "failed": 1}) == (row.is_open, row.counts)
    assert 10 == len(tree_rows(picture, opened={"explore"}))


def test_a_closed_step_hides_what_is_in_it() -> None:
    picture = picture_of(StepStarted("explore", "for"), *branches(2))

    assert ["explore running"] == lines(tree_rows(picture, closed={"explore"}))


def test_the_last_try_stands_for_its_step() -> None:
    picture = picture_of(
        StepStarted("draft", "gen"),
        StepRetried("draft", "EN1", "lost", None, "draft#2", 1.0),
        StepStarted("draft#2", "gen"),
    )

    assert ["draft#2 running"] == lines(tree_rows(picture))
    assert ["draft", "draft#2"] == [step.path for step in tries_of(picture, "draft#2")]


def test_a_branch_shows_the_gravest_of_its_steps() -> None:
    picture = picture_of(
        StepStarted("loop", "loop"),
        StepStarted("loop[0]/a", "gen"),
        StepStarted("loop[0]/b", "ask"),
        StepAsked("loop[0]/b", "well?"),
    )

    assert ["loop asking", "  [0] asking", "    a running", "    b asking"] == lines(
        tree_rows(picture)
    )


def test_only_steps_of_a_status_are_left_with_what_they_lie_in() -> None:
    picture = picture_of(
        StepStarted("explore", "for"), *branches(30), StepFailed("explore[7]/draft", "WF1", "no")
    )

    rows = tree_rows(picture, statuses={"failed"})
    assert ["explore", "[7]/draft"] == [row.label for row in rows]


def test_parents_are_named_from_the_outside_in() -> None:
    assert ("a", "a[1]", "a[1]/b", "a[1]/b[2]") == parents_of("a[1]/b[2]/c#2")
    assert ("draft",) == parents_of("draft[0]")
    assert () == parents_of("draft")
