"""The schemas and grammars of tests/cases, and the shipped grammars, as answers ask for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowforge.grammars import check_schema
from flowforge.grammars.lark.shipped import PREFIX, shipped_names
from flowforge.language.answer_specs import GrammarSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = Path(__file__).parents[1] / "cases"
NOT_MASKED = ("hcl2", "mapfile")
APPROXIMATE = ("lark-meta",)


@dataclass(frozen=True, slots=True)
class SchemaCase:
    """A schema from the world. valid: instances of it, keys in any order."""

    name: str
    schema: Any
    valid: list[Any]


@dataclass(frozen=True, slots=True)
class GrammarCase:
    """A grammar that can be masked. accepted: texts of it; none are kept of a shipped one."""

    name: str
    spec: GrammarSpec
    accepted: tuple[str, ...]


def schema_cases() -> Iterator[SchemaCase]:
    """All, in order of name."""
    for path in sorted((CASES / "json_schemas").glob("*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        yield SchemaCase(path.stem, fields["schema"], fields["valid"])


def is_accepted(schema: Any) -> bool:
    """Whether the check finds nothing that no mask can enforce."""
    return not any(problem.severity == "error" for problem in check_schema(schema))


def grammar_cases() -> Iterator[GrammarCase]:
    """The shipped ones first."""
    for name in shipped_names():
        spec = GrammarSpec("", PREFIX + name, is_shipped=True, has_tree=False)
        yield GrammarCase(PREFIX + name, spec, ())
    for folder in sorted(one for one in (CASES / "lark").iterdir() if one.is_dir()):
        if folder.name in NOT_MASKED:
            continue
        fields = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
        path = folder / fields["grammar"]
        spec = GrammarSpec(
            path.read_text(encoding="utf-8"),
            str(path),
            str(folder),
            start=fields["start"],
            is_approximate=folder.name in APPROXIMATE,
            has_tree=False,
        )
        yield GrammarCase(folder.name, spec, tuple(fields["accepted"]))
