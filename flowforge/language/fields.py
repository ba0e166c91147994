"""Checks of single values that many keys share: texts, numbers, names, unknown keys."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.expression_parser import RESERVED_WORDS
from flowforge.language.foreign_words import help_for_key
from flowforge.language.source import Span
from flowforge.language.template_parser import parse_template
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, SequenceNode, kind_of_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.language.drafts import Context
    from flowforge.language.scope import Report
    from flowforge.language.template_parser import TemplateDraft
    from flowforge.language.yaml_nodes import Entry

_NAME = re.compile(r"[^\W\d][\w-]*")
_MAX_NAME_CHARS = 100
TAKEN_NAMES = ("inputs", "secrets", "do", "yield")
_BRACES = re.compile(r"\{\{\s*[\w.]+[^{}]*\}\}|(?<![$\w{])\{\s*inputs\.[\w.-]+\s*\}")
_LONE_HOLE = re.compile(r"\$\{[^{}]*\}")
_COMMENT = re.compile(r"[ \t]+#")


def text_of(entry: Entry, report: Report) -> str | None:
    """The text of an entry; a number or boolean is its exact characters, so 010 stays 010."""
    node = entry.value
    if not isinstance(node, ScalarNode):
        message = f"{entry.key!r} must be a text, got {kind_of_node(node)}"
        report.error(
            "WF107", message, head_of(node.span, report), "quote it if it is meant as a text"
        )
        return None
    if node.value is None or not node.text.strip():
        span = entry.key_span if node.span.start == node.span.end else node.span
        help = f'remove the key, or quote the text: {entry.key}: "null"'
        if not node.text:
            help = f"write the text behind '{entry.key}:', or remove the key"
        report.error("WF114", f"{entry.key!r} is empty", span, help)
        return None
    return node.text


def template_of(entry: Entry | None, context: Context) -> TemplateDraft | None:
    """The template of an entry; None without it, or when it is broken."""
    if entry is None or text_of(entry, context.report) is None:
        return None
    assert isinstance(entry.value, ScalarNode)
    _warn_of_cut(entry.value, context.report)
    return template_of_scalar(entry.value, context)


def template_of_scalar(node: ScalarNode, context: Context) -> TemplateDraft:
    """The template of a text, which may be empty."""
    braces = _BRACES.search(node.text)
    if braces is not None:
        place = _find(node, braces[0], context.report)
        help = "FlowForge writes ${ … }"
        context.report.warning("WF019", f"{braces[0]!r} is plain text here", place, help)
    return parse_template(context.source, node, context.report)


def integer_of(entry: Entry | None, report: Report, least: int, most: int) -> int | None:
    """A whole number in a range; None without the key, or when it is broken."""
    if entry is None:
        return None
    node = entry.value
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{entry.key!r} must be a whole number, got {kind_of_node(node)}"
        report.error("WF107", message, place_of(entry, report), None)
        return None
    if least <= value <= most:
        return value
    limits = f"at least {least}" if value < least else f"at most {most}"
    report.error("WF108", f"{entry.key!r} must be {limits}, got {value}", node.span)
    return None


def number_of(entry: Entry | None, report: Report, least: float, most: float) -> float | None:
    """A number in a range; None without the key, or when it is broken."""
    if entry is None:
        return None
    node = entry.value
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"{entry.key!r} must be a number, got {kind_of_node(node)}"
        report.error("WF107", message, place_of(entry, report), None)
        return None
    if least <= value <= most:
        return float(value)
    message = f"{entry.key!r} must be from {least:g} to {most:g}, got {value}"
    report.error("WF108", message, node.span)
    return None


def mapping_of(entry: Entry, report: Report, help: str) -> MappingNode | None:
    """The mapping of an entry; None when it is something else."""
    if isinstance(entry.value, MappingNode):
        return entry.value
    message = f"{entry.key!r} must be a mapping, got {kind_of_node(entry.value)}"
    report.error("WF107", message, place_of(entry, report), help)
    return None


def texts_of(entry: Entry, report: Report, what: str) -> list[tuple[str, Span]]:
    """The texts of a list, each once; a number or boolean is its exact characters."""
    node = entry.value
    if not isinstance(node, SequenceNode) or not node.items:
        got = "an empty list" if isinstance(node, SequenceNode) else kind_of_node(node)
        message = f"{entry.key!r} must be a list of {what}, got {got}"
        report.error("WF107", message, place_of(entry, report), f"for example {entry.key}: [a, b]")
        return []
    texts: dict[str, Span] = {}
    for item in node.items:
        span = item.span if item.span.start < item.span.end else entry.key_span
        if not isinstance(item, ScalarNode) or item.value is None or not item.text.strip():
            message = f"{entry.key!r} must hold {what}, got {kind_of_node(item)}"
            report.error("WF107", message, head_of(span, report), "quote what is meant as a text")
        elif item.text in texts:
            message = f"{item.text[:40]!r} is in {entry.key!r} twice"
            report.error("WF107", message, item.span, "remove one")
        else:
            texts[item.text] = item.span
    return [*texts.items()]


def word_of(entry: Entry | None, report: Report, words: tuple[str, ...]) -> str | None:
    """One of a few words; None without the key, or when it is broken."""
    if entry is None:
        return None
    node = entry.value
    if isinstance(node, ScalarNode) and node.text in words:
        return node.text
    shown = repr(node.text[:40]) if isinstance(node, ScalarNode) else kind_of_node(node)
    expected = " or ".join(repr(word) for word in words)
    help = did_you_mean(node.text, words) if isinstance(node, ScalarNode) else None
    message = f"{entry.key!r} must be {expected}, got {shown}"
    report.error("WF107", message, place_of(entry, report), help)
    return None


def check_keys(
    node: MappingNode,
    keys: Iterable[str],
    unbuilt: Iterable[str],
    owner: str,
    report: Report,
    foreign: Mapping[str, str] | None = None,
) -> None:
    """Report keys that do not belong. foreign: keys of other owners, with the owner's name."""
    known, later = set(keys), set(unbuilt)
    for entry in node.entries:
        if entry.key in known:
            continue
        if entry.key in later:
            message = f"key {entry.key!r} is not built yet"
            report.error("WF102", message, entry.key_span, "remove it until it is")
            continue
        owned = (foreign or {}).get(entry.key)
        otherwise = f"known keys: {', '.join(sorted(known))}"
        help = f"it belongs to {owned}" if owned else help_for_key(entry.key, known, otherwise)
        report.error("WF101", f"{entry.key!r} is not a key of {owner}", entry.key_span, help)


def is_safe_name(name: str, span: Span, what: str, report: Report) -> bool:
    """Whether a name may stand in expressions and step paths; if not, the reason is reported."""
    help = "a name begins with a letter or '_' and goes on with letters, digits, '_' and '-'"
    if name in RESERVED_WORDS or name in TAKEN_NAMES:
        reason, help = "is a word of the language", "choose another name"
    elif len(name) > _MAX_NAME_CHARS:
        reason = f"is longer than {_MAX_NAME_CHARS} characters"
    elif not _NAME.fullmatch(name):
        reason = "is not allowed"
    elif unicodedata.normalize("NFC", name) != name:
        reason = "is not in Unicode's composed form (NFC)"
    else:
        return True
    shown = name if len(name) <= _MAX_NAME_CHARS else name[:20] + "…"
    report.error("WF105", f"{what} name {shown!r} {reason}", span, help)
    return False


def _warn_of_cut(node: ScalarNode, report: Report) -> None:
    """Warn where words may have been meant to go on; an expression is whole as it stands."""
    is_cut = node.style == "plain" and _COMMENT.match(report.source.text, node.span.end)
    if is_cut and not _LONE_HOLE.fullmatch(node.text):
        start = report.source.text.index("#", node.span.end)
        help = "quote the text if it goes on here"
        message = "the text ends here: ' #' begins a comment"
        report.warning("WF018", message, Span(start, start + 1), help)


def place_of(entry: Entry, report: Report) -> Span:
    """Where an entry's value stands, on its first line; its key when there is nothing."""
    span = entry.value.span
    return entry.key_span if span.start == span.end else head_of(span, report)


def head_of(span: Span, report: Report) -> Span:
    """The span's part on its first line."""
    source = report.source
    line_idx = source.line_idx(span.start)
    end = source.line_start(line_idx) + len(source.line(line_idx))
    return Span(span.start, max(span.start + 1, min(span.end, end)))


def _find(node: ScalarNode, text: str, report: Report) -> Span:
    start = report.source.text.find(text, node.span.start, node.span.end)
    return node.span if start < 0 else Span(start, start + len(text))
