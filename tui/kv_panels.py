"""What is shown of the KV cache: a few lines beside a run, and a screen of pages and prefixes."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len

from flowforge.tui.lines import Line, plain_line
from flowforge.tui.marks import mark_of, style_of
from flowforge.view.page_map import PAGE_USES, page_map, without_free_end
from flowforge.view.prefixes import prefix_rows
from flowforge.view.printable import first_cells, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.view.page_map import PageMap, PageUse
    from flowforge.view.prefixes import PrefixRow
    from flowforge.view.run_view import RunView

_LOOKS: Mapping[PageUse, tuple[str, str, str]] = {
    "shared": ("▓", "S", "magenta"),
    "tree": ("▒", "t", "blue"),
    "private": ("█", "P", "cyan"),
    "cached": ("░", "c", "dim blue"),
    "free": ("·", ".", "dim"),
}
"""The mark of a page, that in ASCII, and its style: none is told by its colour alone."""

_MAP_WIDTH = 40
_MAP_ROWS = 24
_BESIDE_FROM = 100
"""Cells of width from which on the map is beside the tree, and not above it."""


def kv_lines(view: RunView, width: int, *, is_ascii: bool) -> list[Line]:
    """The KV cache in a few lines: pages, tokens computed and reused, forks."""
    seen = page_map(view.page_map, max(8, min(60, width - 4)))
    pages = view.statistics
    accounting = view.picture.accounting
    lines: list[Line] = []
    if seen is not None:
        # One cell a page would leave most of them out of sight: the bar is sorted, the map is not.
        lines += [_bar(seen.counts, width, is_ascii=is_ascii), _counts_line(seen.counts)]
    elif pages is not None and pages.pages_total:
        counts: dict[PageUse, int] = {
            "private": pages.pages_held,
            "cached": pages.pages_cached,
            "free": pages.pages_free,
        }
        lines.append(_bar(counts, width, is_ascii=is_ascii))
        lines.append(
            plain_line(
                f"held {pages.pages_held:,}  cached {pages.pages_cached:,}  "
                f"free {pages.pages_free:,}  peak {pages.pages_peak:,} of {pages.pages_total:,}"
            )
        )
    elif accounting is not None and accounting.pages_total:
        peak, total = accounting.pages_peak, accounting.pages_total
        used: dict[PageUse, int] = {"private": peak, "free": total - peak}
        lines.append(_bar(used, width, is_ascii=is_ascii))
        lines.append(plain_line(f"pages at peak {peak:,} of {total:,}"))
    prefilled, reused = view.prompt_tokens
    asked = prefilled + reused
    hit = f"{reused / asked:.0%}" if asked else "none yet"
    return [
        *lines,
        plain_line(f"prompt: {prefilled:,} computed, {reused:,} reused (hit rate {hit})"),
        plain_line(f"forks {view.num_forks}   K shows the pages, and who shares what"),
    ]


def _counts_line(counts: Mapping[PageUse, int]) -> Line:
    return plain_line("  ".join(f"{use} {counts[use]:,}" for use in PAGE_USES))


def _bar(counts: Mapping[PageUse, int], width: int, *, is_ascii: bool) -> Line:
    """Pages by their use, in proportion; of what there is at all, at least a cell is seen."""
    room = max(8, min(60, width - 4))
    total = max(1, sum(counts.values()))
    pieces: list[tuple[str, str]] = []
    left = room
    for use in PAGE_USES:
        num = counts.get(use, 0)
        cells = left if use == "free" else min(left, -(-num * room // total))
        glyph, letter, style = _LOOKS[use]
        pieces.append(((letter if is_ascii else glyph) * cells, style))
        left -= cells
    return Line(tuple(piece for piece in pieces if piece[0]))


# -- the screen ------------------------------------------------------------------------------------


def prefix_lines(view: RunView, width: int, *, is_ascii: bool) -> list[Line]:
    """The KV screen: counts, the tree of prefixes, and the map of pages beside it or above."""
    head = [plain_line("Pages", "bold"), *kv_lines(view, width, is_ascii=is_ascii)[:-1]]
    head.append(plain_line(f"forks {view.num_forks}"))
    rows = prefix_rows(view)
    longest = max(((row.shared_tokens or 0) + (row.own_tokens or 0) for row in rows), default=0)
    tree = [
        plain_line("Prefixes: each conversation under the one that it continues", "bold"),
        plain_line("shared: prompt tokens found in the cache; own: computed for it", "dim"),
        *(_prefix_line(row, longest, is_ascii=is_ascii) for row in rows),
    ]
    if not rows:
        tree.append(plain_line("no conversation has begun", "dim"))
    whole = page_map(view.page_map, 1)
    if whole is None:
        return [*head, plain_line(""), *tree]
    # Most pages are free: what lies behind the last that is used would hide the others.
    used = page_map(without_free_end(view.page_map), _MAP_WIDTH * _MAP_ROWS)
    drawn = _map_lines(used or whole, whole.counts, is_ascii=is_ascii)
    if width < _BESIDE_FROM:
        return [*head, plain_line(""), *drawn, plain_line(""), *tree]
    return [*head, plain_line(""), *_beside(tree, drawn, width - _MAP_WIDTH - 1)]


def _map_lines(seen: PageMap, counts: Mapping[PageUse, int], *, is_ascii: bool) -> list[Line]:
    per_cell = seen.pages_per_cell
    scale = "1 cell = 1 page" if per_cell == 1 else f"1 cell = {per_cell} pages, their commonest"
    rows = range(0, len(seen.cells), _MAP_WIDTH)
    return [
        plain_line(f"Map: {scale}", "bold"),
        *(_map_row(seen.cells[at : at + _MAP_WIDTH], is_ascii=is_ascii) for at in rows),
        *(_legend_line(use, counts[use], is_ascii=is_ascii) for use in PAGE_USES),
    ]


def _map_row(cells: Sequence[PageUse], *, is_ascii: bool) -> Line:
    pieces: list[tuple[str, str]] = []
    for use in cells:
        glyph, letter, style = _LOOKS[use]
        mark = letter if is_ascii else glyph
        if pieces and pieces[-1][1] == style:
            pieces[-1] = (pieces[-1][0] + mark, style)
        else:
            pieces.append((mark, style))
    return Line(tuple(pieces))


_MEANINGS: Mapping[PageUse, str] = {
    "shared": "shared: several conversations",
    "tree": "tree: one conversation",
    "private": "private: not in the tree",
    "cached": "cached: of none, for later",
    "free": "free",
}


def _legend_line(use: PageUse, num: int, *, is_ascii: bool) -> Line:
    glyph, letter, style = _LOOKS[use]
    mark = letter if is_ascii else glyph
    return Line(((f"{mark} ", style), (f"{num:>6,} ", ""), (_MEANINGS[use], "dim")))


def _beside(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    """Lines with others beside them, from cell `width` on; what is longer is cut with a mark."""
    lines: list[Line] = []
    empty = plain_line("")
    for one, other in zip_longest(left, right, fillvalue=empty):
        room = width
        pieces: list[tuple[str, str]] = []
        for text, style in one.pieces:
            cut = text if cell_len(text) <= room else first_cells(text, room)
            pieces.append((cut, style))
            room -= cell_len(cut)
        pieces.append((" " * (room + 1), ""))
        lines.append(Line((*pieces, *other.pieces), one.key))
    return lines


def _prefix_line(row: PrefixRow, longest: int, *, is_ascii: bool) -> Line:
    room = 24
    branch = "`- " if is_ascii else "└─ "
    shared, own = row.shared_tokens, row.own_tokens
    pieces = [
        (f"{'   ' * row.depth}{branch if row.depth else ''}", "dim"),
        (f"{mark_of(row.status, is_ascii=is_ascii)} ", style_of(row.status)),
        (f"{one_line(row.path)}  ", "bold"),
    ]
    if shared is None or own is None:
        pieces.append((f"{row.generated_tokens:,} written so far", "dim"))
    else:
        num_shared = shared * room // longest if longest else 0
        num_own = -(-own * room // longest) if longest else 0
        some, full = ("+", "#") if is_ascii else ("▒", "█")
        pieces += [(some * num_shared, "blue"), (full * num_own, "cyan")]
        pieces.append((f"  shared {shared:,}  own {own:,}  written {row.generated_tokens:,}", ""))
    if row.num_forks:
        pieces.append((f"  {row.num_forks} fork{'s' * (row.num_forks > 1)}", "dim"))
    return Line(tuple(pieces), row.path)
