"""The page of all codes, made from their explanations: an anchor for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.codes.explanations import changes, families, how_it_is_run
from flowforge.reference.markdown import MADE, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.codes.explanations import Explanation, Family

_HEAD = f"""# Codes

{MADE}

`flowforge explain WF202` prints what stands here of a code, and `flowforge explain` lists all.

A code never changes its meaning. Its family says who can act: WF the author of the workflow or who
gave its inputs, TL the owner of a tool, EN who operates the engine or chose the model, IN we.
`flowforge check` reports WF0 to WF2, and all of a file at once."""


def codes_page() -> str:
    """Every code that a user may meet, in Markdown."""
    return "\n\n".join([_HEAD, *(part for family in families() for part in _parts(family))]) + "\n"


def _parts(family: Family) -> Iterator[str]:
    yield f"## {family.title}"
    rows = ((f"[{one.code}](#{one.code})", one.meaning) for one in family.explanations)
    yield table(("code", "meaning"), rows)
    for one in family.explanations:
        yield from _explained(one, is_yaml=family.prefix != "WF0")


def _explained(one: Explanation, *, is_yaml: bool) -> Iterator[str]:
    """is_yaml: where a block of YAML can be parsed as such."""
    yield f"### {one.code}: {one.meaning} {{ #{one.code} }}"
    yield one.cause.strip()
    if one.example:
        yield f"For example: {one.example.strip()}"
    if one.block:
        language = one.language if is_yaml or one.language != "yaml" else "text"
        yield f"```{language}\n{one.block.strip()}\n```"
    if one.inputs is not None:
        yield f"Run as `{how_it_is_run(one.inputs)}`."
    yield f"**Fix.** {one.fix.strip()}"
    if one.wrong:
        yield "\n".join(["```diff", *changes(one), "```"])
