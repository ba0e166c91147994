"""What a viewer says of a constrained answer: its form, whether it may end, what could follow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from viewer_runs import events_of

from flowforge.backends.protocol import Usage
from flowforge.journal.records import WorkRow
from flowforge.runtime.events import StepFinished, StepStarted, StepText
from flowforge.view.constraint_state import MAX_CHARS, constraint_state
from flowforge.view.run_view import RunView
from flowforge.view.step_detail import detail_of

if TYPE_CHECKING:
    from flowforge.view.constraint_state import ConstraintState

ITEMS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def state(asked: dict[str, Any], text: str) -> ConstraintState:
    found = constraint_state(asked, text)
    assert found is not None
    return found


def test_json_is_followed_from_its_first_character_to_its_last() -> None:
    begun = state({"json_schema": ITEMS}, "")
    assert (False, "'['") == (begun.may_end, begun.following)
    inside = state({"json_schema": ITEMS}, "[12")
    assert (False, "',', '0' to '9'") == (inside.may_end, inside.following)
    whole = state({"json_schema": ITEMS}, "[12,3]")
    assert (True, "the end", 6) == (whole.may_end, whole.following, whole.num_taken)
    assert whole.name.startswith('JSON Schema {"type": "array"')


def test_choices_and_regexes_are_followed() -> None:
    assert "'e'" == state({"choice": ["yes", "yet"]}, "y").following
    assert "'s', 't'" == state({"choice": ["yes", "yet"]}, "ye").following
    assert state({"regex": "a+b?"}, "aa").may_end
    broken = state({"regex": "a+b?"}, "aax")
    assert (2, True) == (broken.num_taken, broken.may_end)


def test_a_grammar_is_called_by_its_file() -> None:
    asked = {"grammar": {"text": 'start: "a" "b"\n', "file": "ab.lark", "is_inline": True}}

    told = state(asked, "a")

    assert ("grammar ab.lark, from rule 'start'", "'b'") == (told.name, told.following)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"regex": "("}, ""),
        ({"regex": "a*"}, "a" * (MAX_CHARS + 1)),
        ({"grammar": {"text": "start: missing", "file": "x.lark", "is_inline": True}}, ""),
    ],
)
def test_what_cannot_be_followed_here_is_only_named(asked: dict[str, Any], text: str) -> None:
    told = state(asked, text)

    assert told.name
    assert (None, None, None) == (told.may_end, told.following, told.num_taken)


def test_free_text_has_no_state() -> None:
    assert constraint_state({"sampling": {}}, "any") is None


def test_the_detail_of_a_step_says_how_far_its_answer_is() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    told: Any = {"continues": None, "system": None, "said": [], "request": {"json_schema": schema}}
    open_work = WorkRow("a", 0, "generation", "key", told, 1, 0.0, None, None, None, None, None)
    view = RunView()
    for event in events_of(StepStarted("a", "gen"), StepText("a", '["one"', 4)):
        view.take(event)
    pieces = detail_of(view, "a", lambda _: [open_work])
    assert {"not a whole answer yet", "next: ','"} <= {piece.text for piece in pieces}

    usage = Usage(5, 5, 0, 12, 0.1, 0.5, forced_tokens=3)
    (end,) = events_of(StepFinished("a", ["one", "two"], "stop", usage), first=2)
    view.take(end)
    done = replace(open_work, status="done", result={"text": '["one","two"]'})
    texts = {piece.text for piece in detail_of(view, "a", lambda _: [done])}
    assert "a whole answer" in texts
    assert "forced 3 of 12 tokens (25%): nothing else could follow there" in texts
