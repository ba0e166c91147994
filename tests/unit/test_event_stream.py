from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.runtime.events import (
    Accounting,
    Event,
    RunFinished,
    StepFinished,
    StepStarted,
    StepText,
)
from flowforge.runtime.stream import MAX_WAITING, EventStream

if TYPE_CHECKING:
    from collections.abc import Iterator

END = RunFinished({}, Accounting(0, 0, 0, None, 0, 0, 0.0))


def zero() -> float:
    return 0.0


async def test_a_reader_that_keeps_up_gets_every_text_by_itself() -> None:
    stream = EventStream(zero)
    reader = stream.reader()
    stream.emit(StepText("a", "x", 1))
    stream.emit(StepText("a", "y", 1))
    stream.emit(END)

    assert [
        Event(0, 0.0, StepText("a", "x", 1)),
        Event(1, 0.0, StepText("a", "y", 1)),
        Event(2, 0.0, END),
    ] == [event async for event in reader]


async def test_a_slow_reader_gets_texts_of_a_step_joined_and_every_step_event() -> None:
    stream = EventStream(zero)
    reader = stream.reader(max_waiting=0)
    stream.emit(StepStarted("a", "gen"))
    for letter in "hello":
        stream.emit(StepText("a", letter, 1))
        stream.emit(StepText("b", letter.upper(), 2))
    stream.emit(StepFinished("a", "hello"))
    stream.emit(END)

    assert [
        Event(0, 0.0, StepStarted("a", "gen")),
        Event(1, 0.0, StepText("a", "hello", 5)),
        Event(2, 0.0, StepText("b", "HELLO", 10)),
        Event(11, 0.0, StepFinished("a", "hello")),
        Event(12, 0.0, END),
    ] == [event async for event in reader]


async def test_text_after_a_new_start_of_a_step_is_not_moved_before_it() -> None:
    stream = EventStream(zero)
    reader = stream.reader(max_waiting=0)
    stream.emit(StepText("a", "first", 1))
    stream.emit(StepStarted("a", "gen"))
    stream.emit(StepText("a", "second", 1))
    stream.emit(END)

    facts = [event.fact async for event in reader]

    assert [StepText("a", "first", 1), StepStarted("a", "gen"), StepText("a", "second", 1)] == (
        facts[:-1]
    )


async def test_what_waits_for_a_slow_reader_does_not_grow_with_the_tokens() -> None:
    stream = EventStream(zero)
    reader = stream.reader(max_waiting=10)
    for _ in range(10_000):
        stream.emit(StepText("a", "x", 1))
    stream.emit(END)

    events = [event async for event in reader]

    assert 11 == len(events)
    assert 10_000 == sum(e.fact.num_tokens for e in events if isinstance(e.fact, StepText))


def test_nothing_may_follow_the_terminal_event() -> None:
    stream = EventStream(zero)
    stream.emit(END)

    with pytest.raises(AssertionError, match="after the end of the run"):
        stream.emit(END)


def test_a_reader_that_never_reads_costs_little_however_much_is_told() -> None:
    """REL-016: a hundred thousand events for somebody who does not come back."""
    stream = EventStream(zero)
    reader = stream.reader()
    stream.emit(StepStarted("a", "gen"))
    for _ in range(100_000):
        stream.emit(StepText("a", "word ", 1))

    assert len(reader._backlog.entries) <= MAX_WAITING + 1  # pyright: ignore[reportPrivateUsage]


async def test_who_reads_after_the_run_gets_its_end_and_no_unexplained_gap() -> None:
    """REL-017: numbers only jump where texts of one step were joined."""
    stream = EventStream(zero)
    stream.emit(StepStarted("a", "gen"))
    for idx in range(500):
        stream.emit(StepText("a", f"{idx} ", 1))
    stream.emit(StepFinished("a", "x"))
    stream.emit(END)

    events = [event async for event in stream.reader(max_waiting=100)]
    assert [0, 1, 501, 502] == [event.seq for event in events]
    text = events[1].fact
    assert isinstance(text, StepText)
    assert (500, "".join(f"{idx} " for idx in range(500))) == (text.num_tokens, text.text)
    assert events[-1].fact == END


class Archive:
    """Takes every event but texts, a hundred at a time."""

    def __init__(self) -> None:
        self.num_kept = 0
        self._told: list[Event] = []

    def tap(self, event: Event) -> None:
        if not isinstance(event.fact, StepText):
            self._told.append(event)
        if len(self._told) % 100 == 0:
            self.num_kept = event.seq + 1

    def events(self, end: int) -> Iterator[Event]:
        return (event for event in self._told if event.seq < end)


def tell_of_many_steps(stream: EventStream, num_steps: int) -> None:
    """One that writes all the time, and many others one after another."""
    stream.emit(StepStarted("long", "gen"))
    for idx in range(num_steps):
        stream.emit(StepStarted(f"a[{idx}]", "gen"))
        stream.emit(StepText("long", f"{idx} ", 1))
        stream.emit(StepText(f"a[{idx}]", "x", 1))
        stream.emit(StepFinished(f"a[{idx}]", "x"))


async def test_a_late_reader_of_a_long_run_gets_each_step_once_and_the_text_that_is_open() -> None:
    archive = Archive()
    stream = EventStream(zero, archive.tap, archive=archive)
    tell_of_many_steps(stream, 5_000)
    late = stream.reader()
    stream.emit(StepFinished("long", "end"))
    stream.emit(END)

    events = [event async for event in late]

    seqs = [event.seq for event in events]
    assert sorted(set(seqs)) == seqs
    finished = [event.fact.path for event in events if isinstance(event.fact, StepFinished)]
    assert [*(f"a[{idx}]" for idx in range(5_000)), "long"] == finished
    written = [
        e.fact.text for e in events if isinstance(e.fact, StepText) and e.fact.path == "long"
    ]
    assert "".join(f"{idx} " for idx in range(5_000)) == "".join(written)


def test_a_stream_with_an_archive_lets_go_of_what_is_over() -> None:
    archive = Archive()
    stream = EventStream(zero, archive.tap, archive=archive)

    tell_of_many_steps(stream, 20_000)

    assert len(stream._history.entries) <= 5_000  # pyright: ignore[reportPrivateUsage]
