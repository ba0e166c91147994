"""The walk over a schema that makes the mask's schema of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.grammars.json_patterns import why_not_masked
from flowforge.grammars.lowering.arrays import lower_array_keywords
from flowforge.grammars.lowering.closed_objects import close_object, closes_inside, open_targets
from flowforge.grammars.lowering.combinations import lower_combinations
from flowforge.grammars.lowering.exclusion import Exclusion
from flowforge.grammars.lowering.formats import EXACT_PATTERNS, asks_judge_only, is_masked
from flowforge.grammars.lowering.normal_form import normal_form
from flowforge.grammars.lowering.objects import lower_object_keywords
from flowforge.grammars.lowering.positions import REWRITTEN, SCHEMA_MAPS, inner_schemas
from flowforge.grammars.lowering.references import References
from flowforge.grammars.schema_dialect import make_validator, to_pointer
from flowforge.patterns import what_no_mask_keeps

if TYPE_CHECKING:
    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.schema_dialect import JsonValue

# Drafts in which `$ref` stands alone, and a list under `items` says what the first items are.
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A keyword that the mask leaves to the judge of the finished answer.

    pointer: JSON pointer to it. reason: why, lower case, no full stop. instead: what to write in
    its place; None is what its keyword says.
    """

    pointer: str
    keyword: str
    reason: str
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class LoweredSchema:
    """schema: holds no keyword that a mask cannot enforce. unenforced: what was left out for it."""

    schema: JsonValue
    unenforced: tuple[Unenforced, ...]


def lower_schema(
    schema: JsonValue, *, closes_objects: bool, without: frozenset[str] = frozenset()
) -> LoweredSchema:
    """Make the schema that the mask holds an answer to.

    schema: valid under its meta-schema, nested within limits.
    closes_objects: whether objects that name their properties, and say nothing of others, take no
    others: narrower than the schema, and what an author of a form means.
    without: keywords to leave out wherever they stand.
    """
    walk = SchemaWalk(schema, closes_objects=closes_objects, without=without)
    lowered = walk.lower(schema, ())
    return LoweredSchema(lowered, tuple(dict.fromkeys(walk.unenforced)))


class SchemaWalk:
    """One lowering under way: what is known of the whole schema, and what was left out so far.

    prefix_keyword: how the schema's draft calls the list of the first items' schemas.
    """

    def __init__(self, root: JsonValue, *, closes_objects: bool, without: frozenset[str]) -> None:
        self.references = References(root)
        self._without = without
        self._used = self.references.used_paths()
        self.exclusion = Exclusion(self.references)
        self.unenforced: list[Unenforced] = []
        draft = root.get("$schema") if isinstance(root, dict) else None
        is_old = isinstance(draft, str) and any(name in draft for name in _OLD_DRAFTS)
        has_lists = is_old or (isinstance(draft, str) and "2019-09" in draft)
        self.prefix_keyword = "items" if has_lists else "prefixItems"
        self._ignores_siblings = is_old
        self._closes_objects = closes_objects and self.references.is_plain
        self._open_targets: frozenset[Path] = frozenset()
        if self._closes_objects:
            self._open_targets = open_targets(root, self.references)

    def lower(self, schema: JsonValue, path: Path, *, closes: bool = True) -> JsonValue:
        """Lower the schema at a path. closes: whether its object is no part of another's."""
        if not isinstance(schema, dict):
            return schema
        closes = closes and self._closes_objects and path not in self._open_targets
        schema = normal_form(schema, self.references, ignores_siblings=self._ignores_siblings)
        if closes:
            schema = close_object(schema, self.references)
        schema = self._without_keywords(schema, path)
        lowered: dict[str, JsonValue] = {}
        exact: list[JsonValue] = []
        for keyword, value in schema.items():
            if keyword == "format" and value in EXACT_PATTERNS:
                exact.append({"pattern": EXACT_PATTERNS[str(value)]})
            elif keyword == "format" and not is_masked(value):
                if asks_judge_only(value):
                    self.leave_out(path, keyword, f"the mask does not know {value!r}")
            elif keyword == "pattern" and (reason := why_not_masked(str(value))) is not None:
                found = what_no_mask_keeps(str(value))
                told = (reason, None) if found is None else (found.reason, found.instead)
                self.leave_out(path, keyword, *told)
            elif keyword in ("$dynamicRef", "$recursiveRef"):
                self.leave_out(path, keyword, "where it leads depends on the way to it")
            elif keyword not in REWRITTEN:
                inside = closes_inside(schema, keyword, closes=closes)
                lowered[keyword] = self._lower_value(keyword, value, path, closes=inside)
        conjuncts = [
            *exact,
            *lower_object_keywords(self, schema, lowered, path),
            *lower_array_keywords(self, schema, lowered, path),
            *lower_combinations(self, schema, path, closes=closes),
        ]
        conjuncts = [conjunct for conjunct in conjuncts if conjunct is not True]
        if conjuncts:
            parts = lowered.get("allOf")
            lowered["allOf"] = [*(parts if isinstance(parts, list) else []), *conjuncts]
        return lowered

    def lower_open(self, schema: JsonValue, path: Path) -> JsonValue:
        """Lower a schema that stands for a part of the one at `path`; no object in it is closed."""
        closes_objects, self._closes_objects = self._closes_objects, False
        lowered = self.lower(schema, path)
        self._closes_objects = closes_objects
        return lowered

    def leave_out(self, path: Path, keyword: str, reason: str, instead: str | None = None) -> None:
        """Note a keyword, which stands in the schema at `path`, as left to the judge."""
        if self._used is not None and path not in self._used:
            return
        pointer = to_pointer((*path, keyword))
        self.unenforced.append(Unenforced(pointer, keyword, reason, instead))

    def _without_keywords(self, schema: dict[str, JsonValue], path: Path) -> dict[str, JsonValue]:
        dropped = self._without & schema.keys()
        for keyword in sorted(dropped):
            self.leave_out(path, keyword, "the mask's compiler refuses the schema with it")
        if "patternProperties" in dropped:
            # It would refuse the names that the patterns allow.
            dropped |= {"additionalProperties"}
        return {key: value for key, value in schema.items() if key not in dropped}

    def is_valid(self, name: str, schema: JsonValue) -> bool:
        """Whether a property's name satisfies a schema of names."""
        return bool(make_validator(schema).is_valid(name))

    def _lower_value(
        self, keyword: str, value: JsonValue, path: Path, *, closes: bool
    ) -> JsonValue:
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            return {
                name: self.lower(inner, (*path, keyword, name), closes=closes)
                for name, inner in value.items()
            }
        inner = list(inner_schemas(keyword, value))
        if not inner:
            return value
        lowered = [self.lower(one, (*path, *rest), closes=closes) for rest, one in inner]
        return lowered if isinstance(value, list) else lowered[0]
