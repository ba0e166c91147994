"""`grammar:` of a `gen`: the answer is a text of a Lark grammar, from a file, shipped or inline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.language.answer_specs import GrammarSpec
from flowforge.language.diagnostics import Diagnostic
from flowforge.language.fields import check_keys, place_of, text_of, word_of
from flowforge.language.source import Source, Span
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, kind_of_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.errors import Location
    from flowforge.language.drafts import Context
    from flowforge.language.scope import Report
    from flowforge.language.subflows import Subflows
    from flowforge.language.yaml_nodes import Entry

MAX_GRAMMAR_BYTES = 400_000
SHIPPED = "flowforge/"
_ORIGINS = ("file", "text", "name")
_KEYS = (*_ORIGINS, "start", "parser", "dialect", "approximate", "tree")
_HELP = "give a file 'answer.lark', a shipped one 'flowforge/json', or the grammar's text after '|'"


@dataclass(frozen=True, slots=True)
class GrammarProblem:
    """What a checker of grammars reports.

    place: in the grammar's file or text; None where the whole of it is meant. A problem with the
    severity "warning" lets the workflow run.
    """

    code: str
    message: str
    place: Location | None
    severity: Literal["error", "warning"] = "error"
    help: str | None = None


GrammarChecker: TypeAlias = "Callable[[GrammarSpec], list[GrammarProblem]]"


@dataclass(frozen=True, slots=True)
class GrammarScope:
    """What reading a grammar needs where there is no step, and so no `Context`."""

    source: Source
    report: Report
    subflows: Subflows
    grammar_checker: GrammarChecker | None


def grammar_of(entry: Entry | None, context: GrammarScope | Context) -> GrammarSpec | None:
    """Read `grammar:`, and the grammar's file; what is broken is reported."""
    if entry is None:
        return None
    node = entry.value
    origin, options = entry, MappingNode(entry.key_span, ())
    if isinstance(node, MappingNode):
        check_keys(node, _KEYS, (), "'grammar'", context.report)
        given = [one for one in node.entries if one.key in _ORIGINS]
        if len(given) != 1:
            message = f"'grammar' needs one of 'file', 'text' and 'name', got {len(given)}"
            context.report.error("WF107", message, entry.key_span, _HELP)
            return None
        origin, options = given[0], node
    elif not isinstance(node, ScalarNode):
        message = f"'grammar' must be a text or a mapping, got {kind_of_node(node)}"
        context.report.error("WF107", message, place_of(entry, context.report), _HELP)
        return None
    spec = _read(origin, options, context)
    if spec is not None and context.grammar_checker is not None:
        for problem in context.grammar_checker(spec):
            _report(problem, spec, origin, context)
    return spec


def _read(
    origin: Entry, options: MappingNode, context: GrammarScope | Context
) -> GrammarSpec | None:
    text = text_of(origin, context.report)
    if text is None:
        return None
    report = context.report
    start = options.entry("start")
    parser = word_of(options.entry("parser"), report, ("earley", "lalr"))
    dialect = word_of(options.entry("dialect"), report, ("lark", "llguidance"))
    has_tree = _boolean_of(options.entry("tree"), context)
    spec = GrammarSpec(
        start="start" if start is None else text_of(start, report) or "start",
        parser="lalr" if parser == "lalr" else "earley",
        dialect="llguidance" if dialect == "llguidance" else "lark",
        is_approximate=_boolean_of(options.entry("approximate"), context) is True,
        has_tree=has_tree is not False and dialect != "llguidance",
        text="",
        file="",
    )
    if dialect == "llguidance":
        _refuse_options(options, context)
    return _with_text(spec, origin, text, context)


def _with_text(
    spec: GrammarSpec, origin: Entry, text: str, context: GrammarScope | Context
) -> GrammarSpec | None:
    kind = origin.key if origin.key in _ORIGINS else kind_of_grammar(text)
    match kind:
        case "text":
            name = f"{context.source.file} (grammar)"
            return replace(spec, text=text, file=name, is_inline=True)
        case "name":
            return replace(spec, file=text.strip(), is_shipped=True)
        case "file":
            return _from_file(spec, origin, text.strip(), context)
        case _:
            message = f"'grammar' is neither a file nor a grammar: {text.strip()[:40]!r}"
            context.report.error("WF107", message, place_of(origin, context.report), _HELP)
            return None


def kind_of_grammar(text: str) -> str:
    """Whether a text is a grammar ('text'), its file or name, or, '', none of them."""
    if "\n" in text.strip() or ":" in text:
        return "text"
    if text.strip().endswith(".lark"):
        return "file"
    return "name" if text.startswith(SHIPPED) else ""


def _from_file(
    spec: GrammarSpec, origin: Entry, path: str, context: GrammarScope | Context
) -> GrammarSpec | None:
    report, place = context.report, place_of(origin, context.report)
    folder, root = context.subflows.folder, context.subflows.root
    if folder is None or root is None:
        message = f"the grammar {path!r} cannot be found: this workflow was not read from a file"
        report.error("WF430", message, place, "save the workflow beside it, or write it inline")
        return None
    try:
        target = (folder / path).resolve()
        if not target.is_relative_to(root):
            message = f"the grammar {path!r} lies outside the workflow's folder"
            report.error("WF430", message, place, "move it beside the workflow")
            return None
        with target.open("rb") as stream:
            content = stream.read(MAX_GRAMMAR_BYTES + 1)
        if len(content) > MAX_GRAMMAR_BYTES:
            message = f"the grammar {path!r} is larger than {MAX_GRAMMAR_BYTES:,} bytes"
            report.error("WF430", message, place, "split it, or leave out what is not needed")
            return None
        text = content.decode("utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        message = f"the grammar {path!r} cannot be read: {reason}"
        report.error("WF430", message, place, "paths count from the workflow's folder")
        return None
    shown = str(Path(context.source.file).parent / path)
    return replace(spec, text=text, file=shown, folder=str(target.parent))


def _boolean_of(entry: Entry | None, context: GrammarScope | Context) -> bool | None:
    if entry is None:
        return None
    value = entry.value.value if isinstance(entry.value, ScalarNode) else None
    if isinstance(value, bool):
        return value
    message = f"{entry.key!r} must be true or false, got {kind_of_node(entry.value)}"
    context.report.error("WF107", message, place_of(entry, context.report), None)
    return None


def _refuse_options(options: MappingNode, context: GrammarScope | Context) -> None:
    for key in ("parser", "approximate", "start", "tree"):
        entry = options.entry(key)
        if entry is not None:
            message = f"{key!r} is of no use with 'dialect: llguidance'"
            context.report.error("WF107", message, entry.key_span, "remove it: no lark is involved")


def _report(
    problem: GrammarProblem, spec: GrammarSpec, origin: Entry, context: GrammarScope | Context
) -> None:
    source, span = context.source, place_of(origin, context.report)
    place = problem.place
    notes: tuple[str, ...] = ()
    if place is not None and spec.is_inline and place.file == spec.file:
        span = _span_of_inline(place, origin, context)
    elif place is not None and not spec.is_shipped:
        used_at = source.location(span.start)
        notes = (f"the grammar is used at {used_at}",)
        source = Source(place.file, spec.text if place.file == spec.file else _content(place.file))
        span = _span_at(source, place)
    found = Diagnostic(
        problem.code, problem.severity, problem.message, source, span, problem.help, notes
    )
    context.report.diagnostics.append(found)


def _span_of_inline(place: Location, origin: Entry, context: GrammarScope | Context) -> Span:
    """Where a place of an inline grammar is in the workflow."""
    node, source = origin.value, context.source
    whole = place_of(origin, context.report)
    if not isinstance(node, ScalarNode):
        return whole
    first = source.line_idx(node.span.start)
    if node.style != "literal":
        return whole
    lines = node.text.split("\n")
    filled = next((idx for idx, line in enumerate(lines) if line.strip()), 0)
    shown = source.line(first + 1 + filled)
    indent = len(shown) - len(lines[filled])
    line_idx = first + place.line
    start = source.line_start(line_idx) + indent + place.column - 1
    return Span(start, start + 1)


def _span_at(source: Source, place: Location) -> Span:
    num_lines = source.text.count("\n") + 1
    start = source.line_start(min(place.line, num_lines) - 1) + place.column - 1
    return Span(start, start + 1)


def _content(file: str) -> str:
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, ValueError):
        return ""
