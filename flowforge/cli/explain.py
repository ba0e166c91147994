"""`flowforge explain`: what a code means, why it comes about, and what to do."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line, report
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.codes.explanations import Explanation, Family
    from flowforge.language.program import JsonValue

_MOST_COLUMNS = 100


@click.command
@click.argument("codes", metavar="[CODE]...", nargs=-1, shell_complete=completers.codes)
@options.as_json
@options.traceback
@guarded
def explain(codes: tuple[str, ...], *, as_json: bool, traceback: bool) -> ExitCode:
    """Explain the codes of errors and warnings: cause, example and fix.

    A code is what stands in the brackets of 'error[WF202]'; without one, all are listed.
    """
    from flowforge.language.codes import explanations

    found: list[Explanation] = []
    unknown: list[WorkflowError] = []
    for code in codes:
        try:
            found.append(explanations.explain(code))
        except WorkflowError as error:
            unknown.append(error)
    families = [] if codes else explanations.families()
    if as_json:
        for one in found or [one for family in families for one in family.explanations]:
            print_json_line(_as_json(one))
    elif found:
        click.echo("\n\n\n".join("\n".join(_lines(one, _num_columns())) for one in found))
    elif families:
        click.echo("\n\n".join(_listed(family) for family in families))
    for problem in unknown:
        report(problem, as_json=as_json)
    return ExitCode.USAGE if unknown else ExitCode.DONE


def _num_columns() -> int:
    return min(shutil.get_terminal_size().columns, _MOST_COLUMNS)


def _listed(family: Family) -> str:
    lines = [f"  {one.code}  {one.meaning}" for one in family.explanations]
    return "\n".join([family.title, *lines])


def _lines(one: Explanation, num_columns: int) -> Iterator[str]:
    from flowforge.language.codes.explanations import changes, how_it_is_run

    def prose(text: str) -> str:
        return textwrap.fill(text.strip(), num_columns, break_long_words=False)

    yield f"{one.code}: {one.meaning}"
    yield from ("", prose(one.cause), "", "Example", "")
    if one.example:
        yield textwrap.indent(prose(one.example), "  ")
    if one.block:
        yield textwrap.indent(one.block.rstrip(), "    ")
    if one.inputs is not None:
        yield from ("", f"  {how_it_is_run(one.inputs)}")
    yield from ("", "Fix", "", prose(one.fix))
    if one.wrong:
        yield from ("", *(f"    {line}" for line in changes(one)))


def _as_json(one: Explanation) -> dict[str, JsonValue]:
    return {
        "code": one.code,
        "meaning": one.meaning,
        "cause": one.cause.strip(),
        "example": one.example.strip() or None,
        "language": one.language or None,
        "block": one.block or None,
        "fix": one.fix.strip(),
        "mended": one.mended or None,
    }
