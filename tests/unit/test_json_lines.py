"""Streams of JSON lines, whatever pieces they come in."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.errors import WorkflowError
from flowforge.view.json_lines import BadLineError, JsonLines
from flowforge.view.sources import FileSource

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from flowforge.language.program import JsonValue

OBJECTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3)


@given(st.lists(OBJECTS, max_size=6), st.integers(1, 40))
def test_pieces_of_any_size_give_the_same_objects(
    objects: list[dict[str, JsonValue]], size: int
) -> None:
    whole = "".join(json.dumps(one, ensure_ascii=False) + "\n\n" for one in objects).encode()
    lines = JsonLines()

    taken: list[JsonValue] = []
    for at in range(0, len(whole), size):
        taken += lines.take(whole[at : at + size])

    assert objects == taken


@pytest.mark.parametrize("bad", [b"no json", b"{}, {}", b"[1", b"\xff"])
def test_a_bad_line_is_named_and_what_stands_before_it_is_kept(bad: bytes) -> None:
    with pytest.raises(BadLineError) as raised:
        JsonLines().take(b'{"a": 1}\n' + bad + b"\n{}\n")

    assert bad == raised.value.line
    assert [{"a": 1}] == raised.value.objects


def line(seq: int, **told: JsonValue) -> str:
    return json.dumps({"seq": seq, "time_s": 0.5, **told}) + "\n"


@contextmanager
def opened(folder: Path, *lines: str) -> Generator[FileSource]:
    file = folder / "events.jsonl"
    file.write_text("".join(lines))
    source = FileSource(file)
    yield source
    source.close()


def test_events_before_a_bad_line_are_shown_and_then_the_line_is_told(tmp_path: Path) -> None:
    started = line(0, event="run_started", workflow="w", inputs={}, seed=1)
    with opened(tmp_path, started, "no json\n") as source:
        assert [0] == [event.seq for event in source.poll(1.0).events]
        with pytest.raises(WorkflowError, match="has a line that is no event: b'no json'"):
            source.poll(1.0)


def test_an_event_without_its_fields_is_told(tmp_path: Path) -> None:
    with (
        opened(tmp_path, line(1, event="run_finished")) as source,
        pytest.raises(WorkflowError, match="no event"),
    ):
        source.poll(1.0)


def test_facts_of_a_newer_flowforge_are_left_out(tmp_path: Path) -> None:
    skipped = line(1, event="step_skipped", path="a")
    with opened(tmp_path, line(0, event="moon_rose", path="a"), skipped) as source:
        assert [1] == [event.seq for event in source.poll(1.0).events]


def test_a_file_of_a_newer_version_is_told_plainly(tmp_path: Path) -> None:
    started = line(0, event="run_started", version=99, workflow="w", inputs={}, seed=1)
    expected = "is of a newer FlowForge: it has version 99, this one reads 1"
    with opened(tmp_path, started) as source, pytest.raises(WorkflowError, match=expected):
        source.poll(1.0)
