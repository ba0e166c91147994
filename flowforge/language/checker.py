"""A tree of YAML nodes to a checked program; every problem of the file is reported at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flowforge.language.defaults import parse_defaults
from flowforge.language.drafts import Context
from flowforge.language.fields import check_keys, mapping_of, text_of
from flowforge.language.input_declarations import parse_inputs, type_of_inputs
from flowforge.language.model_declarations import parse_models
from flowforge.language.named_types import parse_types
from flowforge.language.program import Output, Program
from flowforge.language.remote_models import REMOTE
from flowforge.language.scope import Binding, Names
from flowforge.language.secret_declarations import parse_secrets
from flowforge.language.source import Span
from flowforge.language.steps import parse_step, parse_steps, resolve_steps
from flowforge.language.tool_declarations import parse_tools
from flowforge.language.value_drafts import value_of
from flowforge.language.yaml_nodes import ScalarNode, kind_of_node

if TYPE_CHECKING:
    from flowforge.language.checkers import Checkers
    from flowforge.language.scope import Report
    from flowforge.language.subflows import Subflows
    from flowforge.language.yaml_nodes import Entry, MappingNode

LANGUAGE_VERSION = 1
KEYS = (
    *("flowforge", "name", "types", "inputs", "secrets", "tools", "models", "defaults", "steps"),
    "outputs",
)
_PROGRAM_NAME = re.compile(r"\w[\w .-]{0,99}")


def check_program(
    root: MappingNode, report: Report, checkers: Checkers, subflows: Subflows
) -> Program:
    """The program; only to be used when the report has no errors."""
    check_keys(root, KEYS, (), "a workflow", report)
    _check_version(root, report)
    name = _name_of(root, report)
    types = parse_types(root.entry("types"), report, checkers.schema)
    inputs = parse_inputs(root.entry("inputs"), types, report)
    secrets = parse_secrets(root.entry("secrets"), report)
    models = parse_models(root.entry("models"), report)
    known = None if checkers.models is None else checkers.models | {REMOTE + one for one in models}
    context = Context(
        source=report.source,
        report=report,
        schema_checker=checkers.schema,
        grammar_checker=checkers.grammar,
        enclosing={},
        types=types,
        tools=parse_tools(root.entry("tools"), types, secrets, subflows, report, checkers.grammar),
        defaults=parse_defaults(root.entry("defaults"), subflows.folder, report, known),
        subflows=subflows,
        parse_steps=parse_steps,
        parse_step=parse_step,
        resolve_steps=resolve_steps,
        secrets=secrets,
        models=known,
        regex_checker=checkers.regex,
    )
    entry = root.entry("steps")
    if entry is None:
        report.error("WF103", "the workflow has no 'steps'", _top(root), "add 'steps:'")
    drafts = {} if entry is None else parse_steps(entry, context)
    names = Names({}, Names({"inputs": Binding("inputs", type_of_inputs(inputs))}))
    steps = resolve_steps(drafts, names, context)
    outputs = _outputs_of(root.entry("outputs"), names, context)
    file, model = report.source.file, context.defaults.model
    return Program(
        *(name, file, inputs, steps, outputs, context.tools, types.schemas, model, secrets),
        models=models,
    )


def _check_version(root: MappingNode, report: Report) -> None:
    entry = root.entry("flowforge")
    if entry is None:
        help = f"begin the file with 'flowforge: {LANGUAGE_VERSION}'"
        report.error("WF100", "the language version is missing", _top(root), help)
        return
    value = entry.value.value if isinstance(entry.value, ScalarNode) else None
    if isinstance(value, bool) or value != LANGUAGE_VERSION:
        message = f"language version must be {LANGUAGE_VERSION}, got {kind_of_node(entry.value)}"
        report.error("WF100", message, entry.key_span, f"write 'flowforge: {LANGUAGE_VERSION}'")


def _name_of(root: MappingNode, report: Report) -> str:
    entry = root.entry("name")
    if entry is None:
        report.error("WF103", "the workflow has no 'name'", _top(root), "add 'name: …'")
        return ""
    name = text_of(entry, report)
    if name is not None and not _PROGRAM_NAME.fullmatch(name.strip()):
        help = "letters, digits, spaces and '_', '.', '-'; up to 100 characters"
        report.error("WF105", f"workflow name {name[:40]!r} is not allowed", entry.key_span, help)
    return "" if name is None else name.strip()


def _outputs_of(entry: Entry | None, names: Names, context: Context) -> dict[str, Output]:
    help = "for example outputs: { report: '${ report }' }"
    mapping = None if entry is None else mapping_of(entry, context.report, help)
    outputs: dict[str, Output] = {}
    for one in () if mapping is None else mapping.entries:
        draft = value_of(one, context)
        if draft is not None:
            value = draft.typed(names, context.report)
            location = context.source.location(one.key_span.start)
            outputs[one.key] = Output(one.key, value, location)
    return outputs


def _top(root: MappingNode) -> Span:
    return root.entries[0].key_span if root.entries else Span(0, 1)
