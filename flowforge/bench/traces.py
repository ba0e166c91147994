"""Workloads from recorded traces: a CSV file of the rounds of sessions."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

from flowforge.bench.program_calls import Continued, Segment, Workload
from flowforge.errors import Location, WorkflowError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.bench.program_calls import Part

COLUMNS = (
    *("session_id", "arrival_time", "round_idx", "prefix_len", "input_len", "output_len"),
    "tool_wait_after_ms",
)


def read_trace(path: Path) -> Workload:
    """One program a session, one call a round.

    arrival_time: seconds from the start of the trace, when the first round comes; later ones come
    when the one before has ended and its tool is back. prefix_len: in a first round, tokens that it
    has in common with the first rounds of other sessions; in later ones, so many tokens of what the
    session has said are gone on with, fewer where its context was cut. input_len: tokens that are
    new in a round. tool_wait_after_ms: until the next round. Raises WorkflowError WF533 for a file
    that is not so.
    """
    workload = Workload(path.stem)
    last: dict[str, int] = {}
    try:
        file = path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise _bad_trace(path, 1, f"it cannot be read: {error.strerror}") from error
    with file:
        reader = csv.DictReader(file)
        try:
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise _bad_trace(path, 1, f"columns are missing: {', '.join(missing)}")
            for row in reader:
                _add_round(workload, last, row, path, reader.line_num)
        except UnicodeDecodeError as error:
            raise _bad_trace(path, reader.line_num + 1, "it is not UTF-8") from error
    if not workload.calls:
        raise _bad_trace(path, 1, "it has no rounds")
    return workload


def _add_round(
    workload: Workload, last: dict[str, int], row: dict[str, str | None], path: Path, line: int
) -> None:
    words = {name: word for name in COLUMNS if (word := row[name]) is not None}
    if len(words) < len(COLUMNS):
        raise _bad_trace(path, line, "the row is shorter than the header")
    session = words["session_id"]
    try:
        arrival_s, wait_ms = float(words["arrival_time"]), float(words["tool_wait_after_ms"])
        round_idx, num_prefix, num_input, num_output = (
            int(words[name]) for name in ("round_idx", "prefix_len", "input_len", "output_len")
        )
    except ValueError as error:
        raise _bad_trace(path, line, f"a number was expected: {error}") from error
    is_finite = math.isfinite(arrival_s) and math.isfinite(wait_ms)
    if not is_finite or min(arrival_s, wait_ms, num_prefix, num_output) < 0 or num_input < 1:
        raise _bad_trace(path, line, "lengths and times are 0 or more, and input_len 1 or more")
    parts: list[Part] = [Segment((session, round_idx), num_input)]
    before: list[int] = []
    if session in last:
        before = [last[session]]
        parts.insert(0, Continued(last[session], num_prefix))
    elif num_prefix:
        parts.insert(0, Segment("prefix", num_prefix))
    program = list(last).index(session) if session in last else len(last)
    last[session] = workload.add(program, parts, num_output, before, wait_ms / 1000, arrival_s)


def _bad_trace(path: Path, line: int, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF533",
        f"the trace is not a table of rounds: {reason}",
        location=Location(str(path), line, 1),
        help=f"write a CSV file with the columns {', '.join(COLUMNS)}, rounds in order",
    )
