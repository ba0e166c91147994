"""Results of the bench read back from the JSON that it printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from flowforge.bench.engine_suite import EngineSuiteResult, SceneTimes
from flowforge.bench.figures import Counts, Times
from flowforge.bench.pressure import PressureResult
from flowforge.bench.quiet import Quietness
from flowforge.bench.scenes import Scene
from flowforge.bench.suite import Result, SuiteResult
from flowforge.errors import Location, WorkflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ReadT = TypeVar("_ReadT")
Found: TypeAlias = EngineSuiteResult | SuiteResult | tuple[PressureResult, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """What one command of the bench found. date: a day, as 2026-11-30. machine: with its load."""

    command: str
    date: str
    machine: str
    found: Found


def read_results(files: Sequence[Path]) -> SuiteResult:
    """All workloads of several files. The machine counts as quiet when it was for each.

    Raises WorkflowError WF534 for a file that is none, and where a workload is in two.
    """
    suites = [_read(path, _suite) for path in files]
    found: dict[str, Path] = {}
    for path, suite in zip(files, suites, strict=True):
        for name in dict.fromkeys(one.workload for one in suite.results):
            if name in found:
                raise _bad_file(path, f"workload {name!r} is in {found[name]} as well")
            found[name] = path
    return joined(suites)


def joined(suites: Sequence[SuiteResult]) -> SuiteResult:
    """Suites of different workloads as one."""
    others = [suite.quietness.others for suite in suites]
    known = [one for one in others if one is not None]
    return SuiteResult(
        tuple(result for suite in suites for result in suite.results),
        Quietness(
            min(suite.quietness.cpu_share for suite in suites), max(known) if known else None
        ),
        "; ".join(dict.fromkeys(suite.machine for suite in suites)),
    )


def read_record(path: Path) -> Record:
    """What `bench engine`, `bench workflows` or `bench pressure` printed with --json.

    Raises WorkflowError WF534 for a file that is none.
    """
    return _read(path, _record)


def read_records(files: Sequence[Path]) -> list[Record]:
    """What several files hold, each figure once. Raises WorkflowError WF534 as `read_record`."""
    records = [read_record(path) for path in files]
    seen: dict[object, Path] = {}
    for path, record in zip(files, records, strict=True):
        for figure, name in _figures_of(record.found):
            if figure in seen:
                raise _bad_file(path, f"{name} is in {str(seen[figure])!r} as well")
            seen[figure] = path
    return records


def _figures_of(found: Found) -> list[tuple[object, str]]:
    """What is measured in a file, by that of which there may be one, and what it is called."""
    if isinstance(found, EngineSuiteResult):
        # Engines may be compared several times, in different runs.
        return [(found.times, "the same comparison of engines")]
    if isinstance(found, SuiteResult):
        return [
            ((one.workload, one.baseline, one.times is None), f"workload {one.workload!r}")
            for one in found.results
        ]
    return [
        ((one.workload, one.baseline, one.peak_of, one.share), f"workload {one.workload!r}")
        for one in found
    ]


def _record(whole: dict[str, Any]) -> Record:
    first: dict[str, Any] = next(iter(whole["results"]), {})
    found: Found
    if "contestant" in first:
        found = _engine_suite(whole)
    elif "peak_of" in first:
        found = tuple(PressureResult(**one) for one in whole["results"])
    else:
        found = _suite(whole)
    return Record(str(whole["command"]), str(whole["date"]), str(whole["machine"]), found)


def _suite(whole: dict[str, Any]) -> SuiteResult:
    return SuiteResult(
        tuple(_result(one) for one in whole["results"]), _quietness(whole), str(whole["machine"])
    )


def _engine_suite(whole: dict[str, Any]) -> EngineSuiteResult:
    times = tuple(
        SceneTimes(
            one["contestant"],
            Scene(one["kind"], one["streams"], one["prompt"], one["steps"]),
            tuple(one["wall_s"]),
            tuple(one["cpu_s"]),
        )
        for one in whole["results"]
    )
    return EngineSuiteResult(times, dict(whole["left_out"]), _quietness(whole))


def _quietness(whole: dict[str, Any]) -> Quietness:
    return Quietness(float(whole["cpu_share"]), whole["others_cores"])


def _result(one: dict[str, Any]) -> Result:
    times = one["times"]
    return Result(
        one["workload"],
        one["baseline"],
        one["num_pages"],
        Counts(**one["counts"]),
        None if times is None else Times(**times),
    )


def _read(path: Path, made_of: Callable[[dict[str, Any]], _ReadT]) -> _ReadT:
    try:
        return made_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise _bad_file(path, f"it cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _bad_file(path, f"{type(error).__name__}: {error}") from error


def _bad_file(path: Path, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF534",
        f"the file does not hold results of the bench: {reason}",
        location=Location(str(path), 1, 1),
        help="give what 'flowforge bench … --json' printed, each workload once",
    )
