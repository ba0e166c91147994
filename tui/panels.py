"""What the panels of a run say: a view's state as lines. Pure, so each is tested by its words."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len

from flowforge.tui.lines import Line, plain_line
from flowforge.tui.marks import WEIGHT_STYLES, mark_of, style_of, word_of
from flowforge.view.printable import first_cells, folded, one_line, seen_chars
from flowforge.view.series import sparkline
from flowforge.view.step_tree import tree_rows
from flowforge.view.texts import clock_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from flowforge.runtime.picture import StepPicture, StepStatus
    from flowforge.view.run_view import RunView
    from flowforge.view.sources import Link, RunListing
    from flowforge.view.step_detail import Kind, Piece
    from flowforge.view.step_tree import TreeRow

_MAX_FOUND = 500
_NAME_CELLS = 30

_DETAIL_STYLES: dict[Kind, str] = {
    "heading": "bold",
    "plain": "",
    "dim": "dim",
    "value": "underline cyan",
    "special": "bold magenta",
    "template": "italic magenta",
    "shared": "dim",
    "output": "",
    "error": "red",
    "good": "green",
}

_STATES: dict[Link, str] = {"cut": "interrupted", "lost": "unknown"}
"""What is known of a run that has not told its end."""

_LINK_WORDS: dict[Link, str] = {
    "live": "live",
    "recorded": "recorded",
    "cut": "interrupted",
    "lost": "connection lost",
}


def header_line(
    view: RunView, run_id: str, link: Link, now_s: float, *, is_ascii: bool, place: str
) -> Line:
    """The run in one line. place: where in time it is seen, or ""."""
    picture = view.picture
    state = picture.status if view.is_over else _STATES.get(link, picture.status)
    pieces = [
        (f" {first_cells(picture.workflow, _NAME_CELLS) or '…'} ", "bold"),
        (f"{run_id} ", "dim"),
        (f"{mark_of(state, is_ascii=is_ascii)} {word_of(state)} ", style_of(state)),
        (f"{clock_text(now_s)}  ", ""),
    ]
    if view.questions:
        pieces.append((f"? {len(view.questions)} to answer  ", style_of("asking")))
    if view.failures:
        pieces.append((f"{len(view.failures)} failed  ", style_of("failed")))
    pieces.append((f"{place or _LINK_WORDS[link]}  ", "italic"))
    # On a narrow screen the end is cut.
    pieces.append((f"{view.num_ended}/{len(picture.steps)} steps  ", ""))
    if view.num_tokens:
        pieces.append((f"{view.num_tokens:,} tok  ", ""))
    if view.tokens_per_s() >= 0.5:
        pieces.append((f"{view.tokens_per_s():.0f} tok/s  ", ""))
    return Line(tuple(pieces))


def tree_lines(
    view: RunView,
    *,
    opened: Collection[str],
    closed: Collection[str],
    statuses: Collection[StepStatus],
    is_ascii: bool,
) -> list[Line]:
    """The steps; the key of a line is its path."""
    rows = tree_rows(view.picture, opened=opened, closed=closed, statuses=statuses)
    return [_tree_line(view, row, is_ascii=is_ascii) for row in rows]


def _tree_line(view: RunView, row: TreeRow, *, is_ascii: bool) -> Line:
    fold = {None: " ", True: "v" if is_ascii else "▾", False: ">" if is_ascii else "▸"}[row.is_open]
    pieces = [
        (f"{'  ' * row.depth}{fold}", "dim"),
        (f"{mark_of(row.status, is_ascii=is_ascii)} ", style_of(row.status)),
        (one_line(row.label), "bold" if row.status in {"running", "asking", "failed"} else ""),
    ]
    if row.counts is not None:
        told = ", ".join(f"{count} {word_of(status)}" for status, count in row.counts.items())
        pieces.append((f"  {told}", "dim"))
    elif row.step is not None:
        pieces.append((f"  {_step_note(view, row.step)}", "dim"))
    return Line(tuple(pieces), row.path)


def _step_note(view: RunView, step: StepPicture) -> str:
    """What there is to say of a step in a few words."""
    text = view.texts.get(step.path)
    if step.ended_s is None:
        if text is None or not text.num_tokens or step.status == "asking":
            return view.activity_of(step) or ""
        rate = "" if text.rate is None else f" {text.rate:.0f} t/s"
        return f"{text.num_tokens} tok{rate}"
    if step.next_path is not None and step.next_path not in view.picture.steps:
        return f"failed, {step.next_path.rpartition('#')[2]}. try follows"
    if step.failure is not None and step.status == "failed":
        return first_cells(step.failure.message, 40)
    taken = f"{step.ended_s - step.started_s:.1f}s"
    if step.usage is not None:
        return f"{taken} {step.usage.generated_tokens} tok"
    return taken if step.status == "done" else word_of(step.status)


def log_lines(view: RunView, num: int) -> list[Line]:
    """The last events, the newest below; the key of a line is the path that it is about."""
    return [
        Line(
            (
                (f"{clock_text(line.time_s)} ", "dim"),
                (first_cells(line.text, 400), WEIGHT_STYLES[line.weight]),
            ),
            line.path or "",
        )
        for line in view.log(num)
    ]


def speed_lines(view: RunView, width: int, *, is_ascii: bool) -> list[Line]:
    """Sparklines with their newest values."""
    room = max(8, min(60, width - 22))
    tokens = view.tokens.last(room, view.time_s)
    ttft, tpot, pages = view.ttft_s.last(room), view.tpot_s.last(room), view.pages.last(room)

    def row(name: str, values: list[float] | list[int], newest: str) -> Line:
        drawn = sparkline(values, is_ascii=is_ascii).ljust(room)
        return Line(((f"{name:<10}", "dim"), (drawn, "cyan"), (f" {newest:>9}", "")))

    lines = [
        row("tok/s", tokens, f"{tokens[-1] if tokens else 0:,}"),
        row("TTFT", ttft, _milliseconds(view.ttft_s.newest)),
        row("TPOT", tpot, _milliseconds(view.tpot_s.newest)),
    ]
    if pages:
        lines.append(row("KV pages", pages, f"{pages[-1]:,.0f}"))
    return lines


def run_lines(runs: Sequence[RunListing], *, is_ascii: bool, contains: str) -> list[Line]:
    """A list of runs; the key of a line is the run's id. contains: words to filter by."""
    lines: list[Line] = []
    for listing in runs:
        run, state = listing.run, listing.state
        taken = "" if run.ended_at is None else clock_text(run.ended_at - run.created_at)
        begun = f"{datetime.fromtimestamp(run.created_at):%Y-%m-%d %H:%M}"
        line = Line(
            (
                (f"{mark_of(state, is_ascii=is_ascii)} ", style_of(state)),
                (f"{run.run_id:<22} ", "bold"),
                (f"{word_of(state):<12} ", style_of(state)),
                (f"{begun}  {taken:>8}  ", "dim"),
                (first_cells(run.workflow, 60), ""),
            ),
            run.run_id,
        )
        if contains.lower() in line.text.lower():
            lines.append(line)
    return lines


def detail_lines(pieces: Sequence[Piece], width: int) -> list[Line]:
    """What is known of a step, folded to a width."""
    lines: list[list[tuple[str, str]]] = []
    for piece in pieces:
        style = _DETAIL_STYLES[piece.kind]
        rows = piece.text.split("\n")
        if piece.kind == "heading" and lines:
            lines.append([])
        if piece.begins_line or not lines:
            lines.append([])
        for idx, row in enumerate(rows):
            if idx:
                lines.append([])
            lines[-1].append((row, style))
    width = max(10, width)
    return [folded_line for line in lines for folded_line in _folded(tuple(line), width)]


@lru_cache(maxsize=16_384)
def _folded(pieces: tuple[tuple[str, str], ...], width: int) -> tuple[Line, ...]:
    """A line of styled pieces, folded at cells: prompts must be seen as they are.

    Of a step that is seen as it goes on, most lines are what they were half a second before.
    """
    return tuple(_rows_of(pieces, width))


def _rows_of(pieces: tuple[tuple[str, str], ...], width: int) -> Iterator[Line]:
    row: list[tuple[str, str]] = []
    room = width
    for text, style in pieces:
        at = 0
        while at < len(text):
            head = next(folded(text[at : at + seen_chars(width)], room)) if room >= 2 else ""
            if not head and row:
                yield Line(tuple(row))
                row, room = [], width
                continue
            taken = head or text[at]
            row.append((taken, style))
            room -= cell_len(taken)
            at += len(taken)
            if at < len(text):
                yield Line(tuple(row))
                row, room = [], width
                at += text[at] == " "
    yield Line(tuple(row))


def found_lines(view: RunView, words: str) -> list[Line]:
    """Where a text occurs in what steps wrote, a line for each place; keys are paths."""
    lines: list[Line] = []
    wanted = words.lower()
    for path in view.picture.steps:
        text = view.text_of(path)
        lowered = text.lower()
        at = lowered.find(wanted)
        while at >= 0 and len(lines) < _MAX_FOUND:
            before, after = text[max(0, at - 30) : at], text[at + len(words) : at + 60]
            lines.append(
                Line(
                    (
                        (f"{one_line(path)}  ", "bold"),
                        (one_line(before) + " " * before.endswith(" "), "dim"),
                        (one_line(text[at : at + len(words)]), "reverse"),
                        (one_line(f"x{after}")[1:], "dim"),
                    ),
                    path,
                )
            )
            at = lowered.find(wanted, at + len(words))
    return lines or [plain_line(f"no step wrote {first_cells(words, 60)!r}", "dim")]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
