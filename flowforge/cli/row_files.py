"""What `flowforge map` writes: one line a row, in order, behind which a cut batch goes on."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flowforge.errors import WorkflowError
from flowforge.runtime.event_json import safe_json

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from flowforge.cli.batch import Batch
    from flowforge.language.program import JsonValue


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a row came to. failures: messages with their paths; none when it is done."""

    row: int
    outputs: JsonValue
    failures: tuple[str, ...]

    def as_json(self, batch: str) -> dict[str, JsonValue]:
        """The row's line of the output."""
        head: dict[str, JsonValue] = {"row": self.row, "batch": batch}
        if self.failures:
            return {**head, "status": "failed", "failures": [*self.failures]}
        return {**head, "status": "done", "outputs": self.outputs}


class RowFile:
    """The output of a batch: one line a row, in order; a line that was cut is written again."""

    def __init__(self, path: Path, batch: Batch) -> None:
        """Read what is there.

        Raises WorkflowError WF541, as all that writes, for a file that is not of this batch or
        cannot be written.
        """
        self.path = path
        self._batch = batch
        with self._writing():
            self.results = self._read()
            self.path.open("a").close()

    @property
    def failed_rows(self) -> list[int]:
        """Rows that have failed, in order."""
        return [result.row for result in self.results if result.failures]

    def append(self, result: RowResult) -> None:
        """Write the next row."""
        self.results.append(result)
        with self._writing(), self.path.open("a", encoding="utf-8") as file:
            file.write(self._line(result))

    def replace(self, results: Iterable[RowResult]) -> None:
        """Write rows in the place of those that are there, all at once."""
        by_row = {result.row: result for result in results}
        self.results = [by_row.get(result.row, result) for result in self.results]
        beside = self.path.with_name(f"{self.path.name}.new")
        with self._writing():
            beside.write_text("".join(map(self._line, self.results)), encoding="utf-8")
            beside.replace(self.path)

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise WorkflowError(
                "WF541",
                f"the output {str(self.path)!r} cannot be written: {error.strerror or error}",
                help="mend that and give the same command again: no row that is done runs twice",
            ) from error

    def _line(self, result: RowResult) -> str:
        return f"{safe_json(result.as_json(self._batch.name))}\n"

    def _read(self) -> list[RowResult]:
        if not self.path.exists():
            return []
        whole, newline, torn = self.path.read_bytes().rpartition(b"\n")
        results = [
            self._result_of(number, line)
            for number, line in enumerate((whole + newline).splitlines(), 1)
        ]
        if torn:
            # A line without its end was cut while it was written; its row follows again.
            with self.path.open("r+b") as file:
                file.truncate(len(whole + newline))
        return results

    def _result_of(self, number: int, line: bytes) -> RowResult:
        try:
            told = cast("dict[str, Any]", json.loads(line))
            is_ours = told["batch"] == self._batch.name and told["row"] == number - 1
        except (ValueError, KeyError, TypeError) as error:
            raise self._unusable(f"line {number} is damaged") from error
        if not is_ours:
            raise self._unusable(f"line {number} is of another batch")
        return RowResult(told["row"], told.get("outputs"), tuple(told.get("failures", ())))

    def _unusable(self, reason: str) -> WorkflowError:
        return WorkflowError(
            "WF541",
            f"the output {str(self.path)!r} cannot be gone on with: {reason}",
            help="nothing was changed; name another file by -o, or move this one away",
        )
