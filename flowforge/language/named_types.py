"""Types that a workflow names under `types:`, and JSON Schemas that refer to them.

A schema refers to a named type as `$ref: "#/types/NAME"`, which is written out where it stands, so
that nobody after the check has to look anything up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import is_safe_name, mapping_of, place_of
from flowforge.language.foreign_words import help_for_type
from flowforge.language.schema_nodes import SCHEMA_TYPES, problems_in_schema, schema_of_node
from flowforge.language.schemas import SchemaProblem
from flowforge.language.types import TYPE_WORDS, type_of_word
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, kind_of_node, node_at

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue
    from flowforge.language.schemas import SchemaChecker, SchemaUse
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry

PREFIX = "#/types/"
_MAX_PARTS = 20_000
_NOT_SCHEMAS = ("enum", "const", "default", "examples")
_FORM = "write types: { Critique: { type: object, … } }"


@dataclass(frozen=True, slots=True)
class NamedTypes:
    """The named schemas, already written out. broken: those with reported problems."""

    schemas: dict[str, dict[str, JsonValue]] = field(
        default_factory=dict[str, "dict[str, JsonValue]"]
    )
    broken: set[str] = field(default_factory=set[str])

    def words(self) -> tuple[str, ...]:
        """Every word that stands for a type."""
        return (*self.schemas, *TYPE_WORDS)

    def of_word(self, word: str) -> dict[str, JsonValue] | None:
        """The schema that a word stands for."""
        if word in self.schemas:
            return self.schemas[word]
        if word == "any":
            return {}
        return {"type": word} if type_of_word(word) is not None else None

    def written_out(
        self, schema: dict[str, JsonValue]
    ) -> tuple[dict[str, JsonValue], list[SchemaProblem]]:
        """The schema without references to named types, and what is wrong with those."""
        writer = _Writer(self.schemas, [], [0])
        whole = writer.part(schema, "")
        assert isinstance(whole, dict)
        return whole, writer.problems


@dataclass(frozen=True, slots=True)
class _Writer:
    """Replaces references by what they stand for. num_parts: counted over the whole result."""

    schemas: dict[str, dict[str, JsonValue]]
    problems: list[SchemaProblem]
    num_parts: list[int]

    def part(self, part: JsonValue, pointer: str) -> JsonValue:
        self.num_parts[0] += 1
        if self.num_parts[0] > _MAX_PARTS:
            message = f"named types make the schema larger than {_MAX_PARTS:,} parts"
            if not any(problem.message == message for problem in self.problems):
                self.problems.append(SchemaProblem(pointer, message))
            return {}
        if isinstance(part, list):
            return [self.part(one, f"{pointer}/{idx}") for idx, one in enumerate(part)]
        if not isinstance(part, dict):
            return part
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith(PREFIX):
            return self._referred(part, reference.removeprefix(PREFIX), pointer)
        return {
            key: one if key in _NOT_SCHEMAS else self.part(one, f"{pointer}/{_escaped(key)}")
            for key, one in part.items()
        }

    def _referred(self, part: dict[str, JsonValue], name: str, pointer: str) -> JsonValue:
        schema = self.schemas.get(name)
        if schema is None:
            help = did_you_mean(name, self.schemas, _declared(self.schemas))
            problem = SchemaProblem(f"{pointer}/$ref", f"unknown type {name!r}", "error", help)
            self.problems.append(problem)
            return {}
        # Counted again wherever it is used, since it will stand there.
        written = self.part(schema, pointer)
        assert isinstance(written, dict)
        return {**written, **{key: one for key, one in part.items() if key != "$ref"}}


def parse_types(entry: Entry | None, report: Report, checker: SchemaChecker | None) -> NamedTypes:
    """The declared types; a broken one allows everything."""
    named = NamedTypes()
    mapping = None if entry is None else mapping_of(entry, report, _FORM)
    entries = {} if mapping is None else {one.key: one for one in mapping.entries}
    raw: dict[str, dict[str, JsonValue]] = {}
    for name, one in entries.items():
        is_safe_name(name, one.key_span, "type", report)
        if name in TYPE_WORDS:
            message = f"{name!r} is the name of a built-in type"
            report.error("WF106", message, one.key_span, "choose another name")
        if isinstance(one.value, MappingNode):
            raw[name] = schema_of_node(one.value)
            continue
        message = f"type {name!r} must be a JSON Schema, got {kind_of_node(one.value)}"
        report.error("WF118", message, place_of(one, report), _FORM)
        raw[name] = {}
    for name in raw:
        _write_out(name, raw, entries, named, report, ())
    for name, one in entries.items():
        if name not in named.broken and isinstance(one.value, MappingNode):
            problems = _problems_of(named.schemas[name], checker, "judge")
            report_problems(problems, one.value, "WF118", report)
    return named


def schema_of_entry(
    entry: Entry,
    code: str,
    types: NamedTypes,
    report: Report,
    checker: SchemaChecker | None,
    use: SchemaUse = "judge",
) -> dict[str, JsonValue] | None:
    """The schema an entry gives: a word for a type, or a JSON Schema; None when it is broken.

    code: of the problems. checker: None when only the words in it are to be looked at. use: what
    the schema is for.
    """
    node = entry.value
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value.strip():
        word = node.value.strip()
        schema = types.of_word(word)
        if schema is None:
            help = help_for_type(word, types.words(), f"types: {', '.join(types.words()[:12])}")
            report.error("WF118", f"unknown type {word[:60]!r}", node.span, help)
        elif use != "judge" and word not in types.broken:
            for problem in _problems_of(schema, checker, use):
                add = report.error if problem.severity == "error" else report.warning
                message = f"type {word!r} at {problem.pointer!r}: {problem.message}"
                add(code, message, node.span, problem.help)
        return schema
    if not isinstance(node, MappingNode):
        message = f"{entry.key!r} must be a type or a JSON Schema, got {kind_of_node(node)}"
        help = f"for example {entry.key}: {{ type: array, items: {{ type: string }} }}"
        report.error("WF107", message, place_of(entry, report), help)
        return None
    schema, problems = types.written_out(schema_of_node(node))
    problems = problems or _problems_of(schema, checker, use)
    report_problems(problems, node, code, report)
    return None if any(problem.severity == "error" for problem in problems) else schema


def _problems_of(
    schema: JsonValue, checker: SchemaChecker | None, use: SchemaUse
) -> list[SchemaProblem]:
    slips = problems_in_schema(schema)
    told = {slip.pointer for slip in slips}
    others = [] if checker is None else checker(schema, use)
    return [*slips, *(one for one in others if one.pointer not in told)]


def report_problems(
    problems: list[SchemaProblem], node: MappingNode, code: str, report: Report
) -> None:
    """Problems of a schema, each at its place in the file."""
    for problem in problems:
        add = report.error if problem.severity == "error" else report.warning
        add(code, problem.message, node_at(node, problem.pointer), problem.help)


def _write_out(
    name: str,
    raw: dict[str, dict[str, JsonValue]],
    entries: dict[str, Entry],
    named: NamedTypes,
    report: Report,
    path: tuple[str, ...],
) -> None:
    """Write out a type after those that it refers to."""
    if name in named.schemas:
        return
    if name in path:
        cycle = " → ".join([*path[path.index(name) :], name])
        message = f"type {path[0]!r} contains itself: {cycle}"
        report.error("WF135", message, entries[path[-1]].key_span, "types cannot be recursive")
        named.schemas[name] = {}
        named.broken.add(name)
        return
    for used in _references_in(raw[name]):
        if used in raw:
            _write_out(used, raw, entries, named, report, (*path, name))
    if name in named.schemas:
        return
    schema, problems = named.written_out(raw[name])
    if problems:
        node = entries[name].value
        assert isinstance(node, MappingNode)
        report_problems(problems, node, "WF118", report)
        named.broken.add(name)
    named.schemas[name] = {} if problems else schema


def _references_in(part: JsonValue) -> list[str]:
    if isinstance(part, list):
        return [name for one in part for name in _references_in(one)]
    if not isinstance(part, dict):
        return []
    reference = part.get("$ref")
    own = isinstance(reference, str) and reference.startswith(PREFIX)
    names = [str(reference).removeprefix(PREFIX)] if own else []
    inner = (one for key, one in part.items() if key not in _NOT_SCHEMAS)
    return [*names, *(name for one in inner for name in _references_in(one))]


def _declared(schemas: dict[str, dict[str, JsonValue]]) -> str:
    if schemas:
        return f"named types: {', '.join(schemas)}"
    return f"declare it under 'types', or use one of {', '.join(SCHEMA_TYPES)}"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
