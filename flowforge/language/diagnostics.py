"""Problems of a workflow file, shown as a compiler shows them."""

from __future__ import annotations

import bisect
import difflib
import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.errors import Location
    from flowforge.language.program import JsonValue
    from flowforge.language.source import Source, Span

Severity = Literal["error", "warning"]
TAB_COLUMNS = 4
# A line longer than this is shown only around the caret.
MAX_LINE_COLUMNS = 160
# Of places that are named on one line, and of problems of one code in one file.
_MOST_SHOWN = 12
# Known words with which a slip is compared.
_MOST_COMPARED = 200


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem at one place.

    help: how to fix it; shown beside the caret. notes: further lines, for example a second place.
    """

    code: str
    severity: Severity
    message: str
    source: Source
    span: Span
    help: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def location(self) -> Location:
        """Where the problem begins."""
        return self.source.location(self.span.start)

    def as_json(self) -> dict[str, JsonValue]:
        """The fields for machines; lines and columns count from 1, end_column is not included."""
        start, end = self.location, self.source.location(self.span.end)
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "file": start.file,
            "line": start.line,
            "column": start.column,
            "end_line": end.line,
            "end_column": end.column,
            "help": self.help,
            "notes": [*self.notes],
        }


class DiagnosticsError(WorkflowError):
    """A workflow file with at least one error.

    diagnostics: every problem, warnings too, in file order. code, message, location, help: of the
    first error.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        errors = [one for one in diagnostics if one.severity == "error"]
        first = errors[0]
        super().__init__(first.code, first.message, location=first.location, help=first.help)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)

    def __str__(self) -> str:
        return render_diagnostics(self.diagnostics)


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """In file order, each problem once."""
    key_to_diagnostic = {
        (one.span.start, one.code, one.message): one for one in reversed([*diagnostics])
    }
    return tuple(key_to_diagnostic[key] for key in sorted(key_to_diagnostic))


def render_diagnostics(diagnostics: Sequence[Diagnostic], *, colour: bool = False) -> str:
    """The problems with their source lines and carets, and a line that counts them.

    Those that `shown_of` gives. colour: with ANSI escapes.
    """
    blocks = [render_diagnostic(one, colour=colour) for one in shown_of(diagnostics)]
    return "\n\n".join([*blocks, summary_of(diagnostics)])


def shown_of(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What of many problems is shown to a person.

    What is said of several places word by word is said once, with a note that names them. Of one
    code the first dozen of a file are shown; a note of the last says how many there are beside.
    """
    by_code: dict[tuple[str, str], list[Diagnostic]] = {}
    shown: list[Diagnostic] = []
    for one in _with_places(diagnostics):
        alike = by_code.setdefault((one.source.file, one.code), [])
        alike.append(one)
        if len(alike) <= _MOST_SHOWN:
            shown.append(one)
    return [_with_count(one, by_code[one.source.file, one.code]) for one in shown]


def _with_count(shown: Diagnostic, alike: Sequence[Diagnostic]) -> Diagnostic:
    num_more = len(alike) - _MOST_SHOWN
    if num_more <= 0 or shown is not alike[_MOST_SHOWN - 1]:
        return shown
    return replace(shown, notes=(*shown.notes, f"and {num_more:,} more of {shown.code}"))


def _with_places(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    alike: dict[tuple[str, ...], list[Diagnostic]] = {}
    for one in diagnostics:
        said = (one.source.file, one.code, one.severity, one.message, one.help or "", *one.notes)
        alike.setdefault(said, []).append(one)
    return [_with_note(first, others) for first, *others in alike.values()]


def _with_note(first: Diagnostic, others: Sequence[Diagnostic]) -> Diagnostic:
    if not others:
        return first
    places = few_of([str(other.location) for other in others])
    return replace(first, notes=(*first.notes, f"the same at {places}"))


def few_of(places: Sequence[str]) -> str:
    """Places on one line; of many the first, and how many there are beside."""
    shown = ", ".join(places[:_MOST_SHOWN])
    num_more = len(places) - _MOST_SHOWN
    return shown if num_more <= 0 else f"{shown} and {num_more:,} more"


def summary_of(diagnostics: Sequence[Diagnostic]) -> str:
    """For example "2 errors, 1 warning"."""
    counts: list[str] = []
    for severity in ("error", "warning"):
        count = sum(one.severity == severity for one in diagnostics)
        if count:
            counts.append(f"{count:,} {severity}{'' if count == 1 else 's'}")
    return ", ".join(counts) or "no problems"


def render_diagnostic(diagnostic: Diagnostic, *, colour: bool = False) -> str:
    """One diagnostic with its source line and caret. colour: with ANSI escapes."""
    paint = _Paint(colour)
    line_idx = diagnostic.source.line_idx(diagnostic.span.start)
    shown, indent, width = _shown_line(diagnostic, line_idx)
    tone = "31" if diagnostic.severity == "error" else "33"
    number = str(line_idx + 1)
    gutter = " " * len(number)
    carets = paint("^" * width, tone)
    help = "" if diagnostic.help is None else paint(f" help: {diagnostic.help}", "36")
    head = paint(f"{diagnostic.severity}[{diagnostic.code}]", f"1;{tone}")
    lines = [
        f"{head}: {_visible(diagnostic.message)}",
        f"{gutter}--> {diagnostic.location}",
        f"{gutter} |",
        f"{number} | {shown}".rstrip(),
        f"{gutter} | {' ' * indent}{carets}{help}",
    ]
    lines += [f"{gutter} = note: {_visible(note)}" for note in diagnostic.notes]
    return "\n".join(lines)


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant.

    Of many words only the nearest by the alphabet are compared: a file may have thousands of names
    and as many slips.
    """
    candidates = sorted(known)
    folded = {candidate.casefold(): candidate for candidate in reversed(candidates)}
    if word.casefold() in folded:
        return folded[word.casefold()]
    around = bisect.bisect(candidates, word)
    compared = candidates[max(0, around - _MOST_COMPARED // 2) :][:_MOST_COMPARED]
    matches = difflib.get_close_matches(word[:80], compared, n=3, cutoff=0.6)
    # Swapped letters are the commonest slip, then a wrong one; difflib rates both by what is left.
    swapped = [match for match in matches if sorted(match) == sorted(word)]
    one_wrong = [match for match in matches if _num_wrong(match, word) == 1]
    return next(iter([*swapped, *one_wrong, *matches]), None)


def _num_wrong(match: str, word: str) -> int | None:
    """How many letters differ, place by place; None for words of different lengths."""
    if len(match) != len(word):
        return None
    return sum(one != other for one, other in zip(match, word, strict=True))


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A help line with the near miss, or `otherwise`."""
    match = near_miss(word, known)
    return otherwise if match is None else f"did you mean {match!r}?"


class _Paint:
    """Puts ANSI colours around text, or leaves it."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, style: str) -> str:
        return f"\033[{style}m{text}\033[0m" if self._colour else text


def _shown_line(diagnostic: Diagnostic, line_idx: int) -> tuple[str, int, int]:
    """The line as shown, the columns before the caret, and the caret's width, in terminal cells."""
    source, span = diagnostic.source, diagnostic.span
    line = source.line(line_idx)
    start = min(span.start - source.line_start(line_idx), len(line))
    end = min(max(span.end - source.line_start(line_idx), start), len(line))
    if len(line) > MAX_LINE_COLUMNS:
        cut = max(0, start - MAX_LINE_COLUMNS // 2)
        line, start, end = line[cut : cut + MAX_LINE_COLUMNS], start - cut, end - cut
        end = min(end, len(line))
    indent = _num_cells(line[:start])
    return _visible(line), indent, max(1, _num_cells(line[start:end]))


def _visible(text: str) -> str:
    """Tabs as spaces; control characters, which could steer a terminal, by their names."""
    return "".join(_visible_char(char) for char in text)


def _visible_char(char: str) -> str:
    if char == "\t":
        return " " * TAB_COLUMNS
    if (
        unicodedata.category(char) in ("Cc", "Zl", "Zp")
        or char in "\u202a\u202b\u202d\u202e\u2066\u2067"
    ):
        return f"<U+{ord(char):04X}>"
    return char


def _num_cells(text: str) -> int:
    """How many terminal cells a text takes."""
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if len(shown := _visible_char(char)) > 1:
        return len(shown)
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
