"""A plan as text: a line for each step, then what all come to."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from flowforge.cli.plan_models import UNKNOWN_CONTEXT
from flowforge.planning.quantity import longest, one_of, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.planning.plan import Plan, PlannedGeneration, ReadAgain
    from flowforge.planning.quantity import Quantity

_INDEX = re.compile(r"\[\d+\]")
_AGAIN = re.compile(r"#\d+")
_HEADER = ("step", "prompt", "prefilled", "reused", "generated", "pages", "reused from")


def text_of_plan(plan: Plan) -> str:
    """All of a plan; ends with a line feed."""
    lines = [f"plan of {plan.program!r}", ""]
    lines += _table(_HEADER, [_row(group) for group in _groups(plan.generations)])
    lines += ["", *_totals(plan)]
    read_again = _read_again(plan.read_again)
    if read_again:
        lines += ["", "read as text and computed again (only 'from' brings KV along):", *read_again]
    if plan.problems:
        lines += ["", "would fail, if it came to it:", *(f"  {one}" for one in plan.problems)]
    return "\n".join(lines) + "\n"


def quantity_text(quantity: Quantity) -> str:
    """'40', '1 to 191', '12 or more'."""
    if quantity.is_exact:
        return f"{quantity.least:,}"
    if quantity.most is None:
        return f"{quantity.least:,} or more"
    return f"{quantity.least:,} to {quantity.most:,}"


def _groups(generations: Sequence[PlannedGeneration]) -> list[list[PlannedGeneration]]:
    """Generations of one step, whatever its branch, round or try."""
    groups: dict[tuple[str, bool], list[PlannedGeneration]] = {}
    for generation in generations:
        key = (_step_of(generation.path), generation.is_certain)
        groups.setdefault(key, []).append(generation)
    return list(groups.values())


def _row(group: Sequence[PlannedGeneration]) -> tuple[str, ...]:
    first = group[0] if len(group) == 1 else replace(group[0], path=_step_of(group[0].path))
    num_prompts = sum(one.num_samples for one in group)
    times = "" if num_prompts == 1 else f" ×{num_prompts}"
    doubt = "" if first.is_certain else " (perhaps)"
    sources = {_step_of(one.reused_from) for one in group if one.reused_from is not None}
    return (
        f"{first.path}{times}{doubt}",
        quantity_text(one_of(one.prompt for one in group)),
        quantity_text(total(one.prefilled for one in group)),
        quantity_text(total(one.reused for one in group)),
        quantity_text(total(one.generated for one in group)),
        quantity_text(total(one.pages for one in group)),
        ", ".join(sorted(sources)) or "-",
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns of equal width; numbers to the right, words to the left."""
    every = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[idx]) for row in every) for idx in range(len(header))]
    words = (0, len(header) - 1)
    return [
        "  ".join(
            cell.ljust(width) if idx in words else cell.rjust(width)
            for idx, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    ]


def _totals(plan: Plan) -> list[str]:
    cost = plan.cost
    pages = f"pages at peak  {quantity_text(cost.pages)} of {plan.page_size} tokens each"
    if plan.num_pages is not None:
        pages += f", {plan.num_pages:,} there: {plan.pool_fit}"
    is_known = plan.context_len < UNKNOWN_CONTEXT
    context_len = f"{plan.context_len:,} tokens" if is_known else "not known"
    context = f"context        {context_len}: {plan.context_fit if is_known else 'may not fit'}"
    if plan.generations:
        longest_one = longest(one.sequence for one in plan.generations)
        context += f", the longest sequence has {quantity_text(longest_one)}"
    return [
        f"prefilled      {quantity_text(cost.prefilled)} tokens",
        f"reused         {quantity_text(cost.reused)} tokens",
        f"generated      {quantity_text(cost.generated)} tokens",
        f"critical path  {quantity_text(cost.decode_steps)} decode steps",
        pages,
        context,
    ]


def _read_again(every: Iterable[ReadAgain]) -> list[str]:
    groups: dict[tuple[str, tuple[str, ...]], list[ReadAgain]] = {}
    for one in every:
        origins = tuple(dict.fromkeys(map(_step_of, one.origins)))
        groups.setdefault((_step_of(one.path), origins), []).append(one)
    return [
        f"  {path} reads {', '.join(origins)}: {quantity_text(total(one.tokens for one in group))} "
        "tokens"
        for (path, origins), group in groups.items()
    ]


def _step_of(path: str) -> str:
    return _AGAIN.sub("#*", _INDEX.sub("[*]", path))
