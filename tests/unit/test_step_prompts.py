"""The prompt of a step as a viewer shows it: control tokens, values and the shared prefix apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from viewer_runs import events_of

from flowforge.journal.records import WorkRow
from flowforge.runtime.event_json import event_as_json, event_from_json
from flowforge.runtime.events import (
    RunResumed,
    StepFinished,
    StepPrompted,
    StepStarted,
    StepText,
)
from flowforge.telemetry.run_log import RunLog
from flowforge.view.run_view import RunView
from flowforge.view.step_detail import detail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.runtime.events import Fact
    from flowforge.view.step_detail import Kind

FIRST = StepPrompted(
    "a",
    (
        ("special", "<|im_start|>"),
        ("template", "user\n"),
        ("content", "Of cats"),
        ("special", "<|im_end|>"),
    ),
)
SECOND = StepPrompted("b", (("template", "\n"), ("content", "And of dogs, <|im_end|>")))


def view_of(*facts: Fact) -> RunView:
    view = RunView()
    for event in events_of(*facts):
        view.take(event)
    return view


def work(
    path: str,
    *said: object,
    turn: int = 0,
    answer: str | None = None,
    at_s: float = 0.0,
    continues: str | None = None,
) -> WorkRow:
    told: Any = {"continues": continues, "system": None, "said": [*said], "request": {}}
    result: Any = None if answer is None else {"text": answer}
    status: Any = None if answer is None else "done"
    return WorkRow(path, turn, "generation", "key", told, 1, at_s, None, None, status, result, None)


def user(text: str, *values: tuple[int, int]) -> dict[str, object]:
    return {"role": "user", "text": text, "values": [list(one) for one in values]}


def shown(view: RunView, path: str, *works: WorkRow) -> list[tuple[Kind, str]]:
    def works_at(path: str) -> Sequence[WorkRow]:
        return [one for one in works if one.path == path]

    return [(piece.kind, piece.text) for piece in detail_of(view, path, works_at)]


def test_control_tokens_template_and_values_are_told_apart() -> None:
    view = view_of(StepStarted("a", "gen"), FIRST)

    pieces = shown(view, "a", work("a", user("Of cats", (3, 7))))

    at = pieces.index(("special", "<|im_start|>"))
    assert [
        ("special", "<|im_start|>"),
        ("template", "user\n"),
        ("plain", "Of "),
        ("value", "cats"),
        ("special", "<|im_end|>"),
    ] == pieces[at : at + 5]


def test_what_a_message_says_is_no_control_token_whatever_it_spells() -> None:
    view = view_of(StepStarted("b", "gen"), SECOND)

    pieces = shown(view, "b", work("b", user("And of dogs, <|im_end|>", (7, 23))))

    assert ("value", "dogs, <|im_end|>") in pieces
    assert not [text for kind, text in pieces if kind == "special" and "<" in text]


def test_the_turns_of_the_shared_prefix_are_shown_from_the_first_on() -> None:
    works = (
        work("a", user("Of cats", (3, 7)), answer="Cats."),
        work("b", user("And of dogs, <|im_end|>"), continues="a", answer="Dogs."),
        work("c", user("And?"), continues="b"),
    )
    view = view_of(
        *(StepStarted("a", "gen"), FIRST, StepFinished("a", "Cats.")),
        *(StepStarted("b", "gen", "a"), SECOND, StepFinished("b", "Dogs.")),
        *(StepStarted("c", "gen", "b"), StepText("c", "So", 1)),
    )

    pieces = shown(view, "c", *works)

    headings = [text for kind, text in pieces if kind == "heading"]
    assert ["c", "Shared prefix, from a", "Shared prefix, from b", "Prompt", "Output so far"] == (
        headings
    )
    shared = "".join(text for kind, text in pieces if kind == "shared")
    assert "user\nOf catsCats.\nAnd of dogs, <|im_end|>Dogs." == shared
    # Nobody told the last prompt: who says what is all that is known.
    assert ("plain", "And?") in pieces


def test_a_file_of_events_shows_prompts_and_prefixes_too() -> None:
    view = view_of(
        *(StepStarted("a", "gen"), FIRST, StepFinished("a", "Cats.")),
        *(StepStarted("b", "gen", "a"), SECOND),
    )

    pieces = shown(view, "b")

    assert ("shared", "Of cats") in pieces and ("shared", "Cats.") in pieces
    assert ("plain", "And of dogs, <|im_end|>") in pieces


def test_turns_that_had_not_begun_are_not_shown_at_an_earlier_time() -> None:
    works = (work("a", user("first"), answer="x"), work("a", user("later"), turn=1, at_s=30.0))

    early = shown(view_of(StepStarted("a", "gen")), "a", *works)
    late = view_of(StepStarted("a", "gen"))
    late.take_time(31.0)

    assert ("plain", "first") in early and ("plain", "later") not in early
    assert ("plain", "later") in shown(late, "a", *works)


def test_a_turn_whose_prompt_is_not_told_yet_does_not_take_that_of_another() -> None:
    works = (work("a", user("Of cats"), answer="x"), work("a", user("later"), turn=1))
    view = view_of(StepStarted("a", "gen"), FIRST)

    pieces = shown(view, "a", *works)

    prompts = [at for at, piece in enumerate(pieces) if piece == ("heading", "Prompt")]
    assert ("special", "<|im_start|>") in pieces[prompts[0] : prompts[1]]
    assert [("dim", "user "), ("plain", ""), ("plain", "later")][::2] == [
        piece for piece in pieces[prompts[1] + 1 :] if piece[1]
    ]


def test_a_prompt_that_is_asked_a_second_time_after_a_cut_is_of_the_same_turn() -> None:
    second = StepPrompted("a", (("content", "more"),))

    view = view_of(StepStarted("a", "gen"), FIRST, second, RunResumed(1), second)

    assert [FIRST.parts, second.parts] == view.prompts["a"]


def test_a_value_is_found_where_the_template_strips_and_a_backend_adds() -> None:
    text = "You may call:\nprice\n\nOf cats and"
    told = StepPrompted(
        "a", (("content", text), ("content", '{"name": "price", "is": {"euro": 3}}'))
    )
    view = view_of(StepStarted("a", "gen"), told)

    pieces = shown(view, "a", work("a", user(" Of cats and\n", (4, 8)), {"results": [{"euro": 3}]}))

    at = pieces.index(("plain", "You may call:\nprice\n\n"))
    assert [("plain", "Of "), ("value", "cats"), ("plain", " and")] == pieces[at + 1 : at + 4]
    assert ("value", '{"euro": 3}') in pieces


def test_a_log_has_prompts_only_where_values_are_asked_for() -> None:
    (event,) = events_of(FIRST)
    without: list[str] = []
    with_values: list[str] = []

    RunLog(without.append, lambda: 0.0, level="debug").take(event, "r")
    RunLog(with_values.append, lambda: 0.0, level="debug", with_values=True).take(event, "r")

    assert "cats" not in "".join(without)
    assert "cats" in "".join(with_values)


def test_a_told_prompt_is_the_same_from_json() -> None:
    (event,) = events_of(FIRST)

    assert event == event_from_json(event_as_json(event))
