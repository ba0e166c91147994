"""A view is the same however its events were cut, coalesced, repeated or written down."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from flowforge.backends.protocol import Usage
from flowforge.runtime.event_json import event_as_json, event_from_json
from flowforge.runtime.events import (
    Accounting,
    Event,
    Fact,
    PagesSampled,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepAsked,
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepPrompted,
    StepRetried,
    StepSkipped,
    StepStarted,
    StepText,
    ToolCalled,
    ToolReturned,
)
from flowforge.view.run_view import RunView
from flowforge.view.step_tree import bare_path, tree_rows
from flowforge.view.stream_text import StreamText
from flowforge.view.timeline import Timeline

COST = Accounting(1, 2, 3, None, 4, 5, 0.5)
paths = st.sampled_from(["a", "b", "b[0]/c", "b[1]/c", "b[1]/c#2", "d/t[0]", "d[0]", "d[1]/e[3]/f"])
values = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)


def facts() -> st.SearchStrategy[Fact]:
    """Any facts in any order, whatever a run would tell."""
    return st.one_of(
        st.builds(RunStarted, st.just("w"), st.just({"x": 1}), st.integers(0, 9)),
        st.builds(RunResumed, st.integers(0, 3)),
        st.builds(StepStarted, paths, st.sampled_from(["gen", "for", "call"]), st.none() | paths),
        st.builds(StepSkipped, paths),
        st.builds(StepText, paths, st.text(max_size=6), st.integers(0, 3)),
        st.builds(
            StepPrompted, paths, st.tuples(st.tuples(st.just("content"), st.text(max_size=3)))
        ),
        st.builds(PagesSampled, st.sampled_from(["f9", "s2f7"])),
        st.builds(StepAsked, paths, st.text(max_size=4)),
        st.builds(ToolCalled, paths, st.just("t"), st.just({"q": "x"})),
        st.builds(ToolReturned, paths, st.just("t"), values, st.booleans()),
        st.builds(StepFinished, paths, values, st.just("stop"), st.just(Usage(4, 1, 3, 2, 1, 2))),
        st.builds(StepFailed, paths, st.just("WF1"), st.text(max_size=4)),
        st.builds(
            StepRetried, paths, st.just("EN1"), st.just("lost"), st.none(), paths, st.just(1.0)
        ),
        st.builds(StepCaught, paths, st.just("EN1"), st.just("lost")),
        st.builds(StepCancelled, paths),
        st.builds(RunFinished, st.dictionaries(st.just("o"), values), st.just(COST)),
        st.just(RunFailed((StepFailed("a", "WF1", "no", None),), COST)),
        st.just(RunCancelled(COST)),
    )


def streams() -> st.SearchStrategy[list[Event]]:
    return st.lists(facts(), max_size=40).map(
        lambda told: [Event(seq, seq / 4, fact) for seq, fact in enumerate(told)]
    )


def view_of(events: list[Event]) -> RunView:
    view = RunView()
    for event in events:
        view.take(event)
    return view


def shown(view: RunView) -> object:
    """All that does not depend on when texts were looked at."""
    steps = view.picture.steps
    return (
        view.picture,
        view.log(),
        view.calls,
        view.prompts,
        view.num_tokens,
        view.ttft_s.last(99),
        view.tpot_s.last(99),
        {path: (view.text_of(path), view.activity_of(step)) for path, step in steps.items()},
        tree_rows(view.picture),
    )


@given(streams())
def test_any_events_in_any_order_make_a_view(events: list[Event]) -> None:
    view = view_of(events)

    rows = tree_rows(view.picture)
    steps = {bare_path(path) for path in view.picture.steps}
    assert steps <= {bare_path(row.path) for row in rows}
    assert len(rows) == len({row.path for row in rows})


@given(streams(), st.data())
def test_events_that_come_a_second_time_change_nothing(
    events: list[Event], data: st.DataObject
) -> None:
    view = view_of(events)
    before = shown(view)
    for event in data.draw(st.lists(st.sampled_from(events)) if events else st.just([])):
        view.take(event)

    assert before == shown(view)


@given(streams())
def test_a_recording_gives_the_view_that_the_run_gave(events: list[Event]) -> None:
    lines = [json.dumps(event_as_json(event)) for event in events]

    read = [event_from_json(json.loads(line)) for line in lines]
    assert shown(view_of(events)) == shown(view_of(read))


@given(streams())
def test_coalesced_texts_give_the_view_of_each_text(events: list[Event]) -> None:
    coalesced: list[Event] = []
    for event in events:
        last = coalesced[-1] if coalesced else None
        if (
            last is not None
            and isinstance(event.fact, StepText)
            and isinstance(last.fact, StepText)
            and last.fact.path == event.fact.path
        ):
            fact = StepText(
                event.fact.path,
                last.fact.text + event.fact.text,
                last.fact.num_tokens + event.fact.num_tokens,
            )
            coalesced[-1] = Event(last.seq, last.time_s, fact)
        else:
            coalesced.append(event)

    assert shown(view_of(events)) == shown(view_of(coalesced))


@given(streams(), st.integers(2, 12), st.data())
def test_a_long_run_in_coarser_steps_is_the_same_run(
    events: list[Event], max_places: int, data: st.DataObject
) -> None:
    known: list[int] = []
    timeline = Timeline(max_places)
    for event in events:
        timeline.take(event)
        if data.draw(st.booleans()):
            timeline.view_at(len(timeline))
            known.append(timeline.seq_at(len(timeline)))

    joined = (StepText, PagesSampled)
    assert [event for event in events if not isinstance(event.fact, joined)] == [
        event for event in timeline.events if not isinstance(event.fact, joined)
    ]
    assert shown(view_of(events)) == shown(timeline.view_at(len(timeline)))
    for seq in known:
        place = timeline.place_behind(seq)
        assert timeline.seq_at(place) <= seq
        assert place == len(timeline) or timeline.seq_at(place + 1) > seq


def test_texts_of_long_ago_are_few_places() -> None:
    timeline = Timeline(max_places=100)
    timeline.take(Event(0, 0.0, StepStarted("a", "gen")))
    for seq in range(1, 20_000):
        timeline.take(Event(2 * seq, seq / 3, StepText("a", f"{seq} ", 1)))
        timeline.take(Event(2 * seq + 1, seq / 3, PagesSampled(f"f{seq}")))

    assert len(timeline) <= 101
    view = timeline.view_at(len(timeline))
    assert [*map(str, range(1, 20_000))] == view.texts["a"].kept.split()
    assert 19_999 == view.num_tokens


@given(st.lists(st.text(max_size=9), max_size=30), st.integers(1, 40), st.data())
def test_a_text_keeps_its_end_within_its_bound(
    pieces: list[str], max_kept: int, data: st.DataObject
) -> None:
    text = StreamText(max_kept)
    for idx, piece in enumerate(pieces):
        text.append(piece, 1, idx)
    whole = "".join(pieces)
    position = data.draw(st.integers(0, len(whole)))

    assert (len(whole), len(pieces)) == (text.end, text.num_tokens)
    assert whole[-max_kept:] == text.kept
    assert whole[max(position, text.start) :] == text.since(position)
