"""Results of the bench read back from the JSON that it printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flowforge.bench.figures import Counts, Times
from flowforge.bench.quiet import Quietness
from flowforge.bench.suite import Result, SuiteResult
from flowforge.errors import Location, WorkflowError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def read_results(files: Sequence[Path]) -> SuiteResult:
    """All results of several files. The machine counts as quiet when it was for each.

    Raises WorkflowError WF534 for a file that is none, and where a workload is in two.
    """
    suites = [_read(path) for path in files]
    found: dict[str, Path] = {}
    for path, suite in zip(files, suites, strict=True):
        for name in dict.fromkeys(one.workload for one in suite.results):
            if name in found:
                raise _bad_file(path, f"workload {name!r} is in {found[name]} as well")
            found[name] = path
    others = [suite.quietness.others for suite in suites]
    known = [one for one in others if one is not None]
    return SuiteResult(
        tuple(result for suite in suites for result in suite.results),
        Quietness(
            min(suite.quietness.cpu_share for suite in suites), max(known) if known else None
        ),
        "; ".join(dict.fromkeys(suite.machine for suite in suites)),
    )


def _read(path: Path) -> SuiteResult:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        return SuiteResult(
            tuple(_result(one) for one in whole["results"]),
            Quietness(float(whole["cpu_share"]), whole["others_cores"]),
            str(whole["machine"]),
        )
    except OSError as error:
        raise _bad_file(path, f"it cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise _bad_file(path, f"{type(error).__name__}: {error}") from error


def _result(one: dict[str, Any]) -> Result:
    times = one["times"]
    return Result(
        one["workload"],
        one["baseline"],
        one["num_pages"],
        Counts(**one["counts"]),
        None if times is None else Times(**times),
    )


def _bad_file(path: Path, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF534",
        f"the file does not hold results of the bench: {reason}",
        location=Location(str(path), 1, 1),
        help="give what 'flowforge bench workflows --json' printed, each workload once",
    )
