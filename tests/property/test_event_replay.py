"""Replaying a stream rebuilds what a live reader knew, however slow, late or far away it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from flowforge.backends.protocol import Usage
from flowforge.runtime.event_json import event_as_json, event_from_json
from flowforge.runtime.events import (
    Accounting,
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
    StepRetried,
    StepSkipped,
    StepStarted,
    StepText,
)
from flowforge.runtime.picture import RunPicture
from flowforge.runtime.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.runtime.events import Event, Fact
    from flowforge.runtime.stream import EventReader

COST = Accounting(1, 2, 3, None, 4, 5, 0.5)
PATHS = ("a", "b[0]/c", "b[1]/c", "d#2")
values: st.SearchStrategy[Any] = (
    st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
texts = st.text(max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> list[Fact]:
    """Facts of a run as a shell tells them: a step's texts and question lie within it."""
    facts: list[Fact] = [RunStarted("w", {"x": 1}, 7)]
    open_paths: list[str] = []
    waiting = list(PATHS)
    while waiting or open_paths:
        choice = draw(st.integers(0, 5))
        if waiting and (choice == 0 or not open_paths):
            path = waiting.pop(0)
            if draw(st.booleans()):
                facts.append(StepStarted(path, "gen", draw(st.none() | st.just("a"))))
                open_paths.append(path)
            else:
                facts.append(StepSkipped(path))
            continue
        path = draw(st.sampled_from(open_paths))
        if choice <= 3:
            facts.append(StepText(path, draw(texts), draw(st.integers(0, 3))))
        elif choice == 4:
            meanwhile: list[Fact] = [
                StepAsked(path, "well?", ("yes", "no"), [1]),
                StepCaught(path, "EN1", "lost", None),
                RunResumed(3, (path,)),
            ]
            facts.append(draw(st.sampled_from(meanwhile)))
        else:
            open_paths.remove(path)
            ends: list[Fact] = [
                StepFinished(path, draw(values), "stop", Usage(4, 1, 3, 2, 0.1, 0.2)),
                StepFinished(path, draw(values)),
                StepFailed(path, "WF1", "no", "do"),
                StepRetried(path, "EN1", "lost", None, f"{path}#2", 0.5),
                StepCancelled(path),
            ]
            facts.append(draw(st.sampled_from(ends)))
    failed = StepFailed("a", "WF1", "no", None)
    last: list[Fact] = [
        RunFinished({"o": draw(values)}, COST),
        RunFailed((failed,), COST),
        RunCancelled(COST),
    ]
    facts.append(draw(st.sampled_from(last)))
    return facts


def picture_of(events: list[Event]) -> RunPicture:
    picture = RunPicture()
    for event in events:
        picture.take(event)
    return picture


async def all_events(reader: EventReader) -> list[Event]:
    return [event async for event in reader]


@given(histories(), st.integers(0, 30))
def test_every_reader_comes_to_the_same_state(facts: list[Fact], num_early: int) -> None:
    stream = EventStream(lambda: 0.0)
    eager, slow = stream.reader(), stream.reader(max_waiting=0)
    live = RunPicture()
    for fact in facts[:num_early]:
        stream.emit(fact)
    middle = stream.reader(max_waiting=2)
    for fact in facts[num_early:]:
        stream.emit(fact)
    late = stream.reader()
    readers = [anyio.run(all_events, reader) for reader in (eager, slow, middle, late)]
    for event in readers[0]:
        live.take(event)

    assert len(facts) == len(readers[0])
    for events in readers[1:]:
        assert live == picture_of(events)
        assert [event.seq for event in events] == sorted({event.seq for event in events})
    lines = [json.dumps(event_as_json(event)) for event in readers[0]]
    assert live == picture_of([event_from_json(json.loads(line)) for line in lines])


@given(histories(), st.data())
def test_a_stream_that_was_restored_goes_on_to_the_same_state(
    facts: list[Fact], data: st.DataObject
) -> None:
    """What a resumed run hands on: the facts of before without texts, then the rest."""
    cut = data.draw(st.integers(1, len(facts) - 1))
    first = EventStream(lambda: 0.0)
    for fact in facts[:cut]:
        first.emit(fact)
    told = [event for event in anyio.run(_so_far, first) if not isinstance(event.fact, StepText)]
    stream = EventStream(lambda: 0.0, archive=KeptEvents(told))
    early = stream.reader()
    stream.go_on(cut, 0.0)
    written: dict[str, StepText] = {}
    for fact in facts[:cut]:
        if isinstance(fact, StepText):
            before = written.get(fact.path, StepText(fact.path, "", 0))
            text, num = before.text + fact.text, before.num_tokens + fact.num_tokens
            written[fact.path] = StepText(fact.path, text, num)
    ended = {getattr(fact, "path", "") for fact in facts[:cut] if _is_end(fact)}
    for path, cut_text in written.items():
        if path not in ended:
            # A generation that was cut tells first what it had written.
            stream.emit(cut_text)
    for fact in facts[cut:]:
        stream.emit(fact)
    whole = EventStream(lambda: 0.0)
    reader = whole.reader()
    for fact in facts:
        whole.emit(fact)

    expected = picture_of(anyio.run(all_events, reader))
    assert expected == picture_of(anyio.run(all_events, early))
    assert expected == picture_of(anyio.run(all_events, stream.reader()))


class KeptEvents:
    """An archive in memory."""

    def __init__(self, told: list[Event]) -> None:
        self.told = told
        self.num_kept = told[-1].seq + 1

    def events(self, end: int) -> Iterator[Event]:
        """Those before a number."""
        return (event for event in self.told if event.seq < end)


async def _so_far(stream: EventStream) -> list[Event]:
    if not stream.is_closed:
        stream.emit(RunCancelled(COST))
    events = await all_events(stream.reader())
    return events[:-1]


def _is_end(fact: Fact) -> bool:
    return isinstance(fact, StepFinished | StepFailed | StepRetried | StepCancelled)
