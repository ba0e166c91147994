"""Hints for YAML that cannot be parsed: what authors of workflows most often meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from flowforge.language.diagnostics import Diagnostic
from flowforge.language.source import Span

if TYPE_CHECKING:
    from flowforge.language.source import Source

_BLOCK_OR_QUOTES = "quote the whole value, or put it on the next lines after '|'"


def syntax_diagnostic(source: Source, error: Exception) -> Diagnostic:
    """The diagnostic for what the YAML parser raised."""
    if isinstance(error, ReaderError):
        offset = int(error.position)
        char = int(error.character)
        message = f"control character U+{char:04X} is not allowed in YAML"
        escape = f"\\x{char:02x}" if char < 0x100 else f"\\u{char:04x}"
        advice = f'take it out, or write it as an escape in a quoted text: "{escape}"'
        return Diagnostic("WF002", "error", message, source, Span(offset, offset + 1), advice)
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return Diagnostic("WF007", "error", f"not valid YAML: {error}", source, Span(0, 0))
    offset = min(int(error.problem_mark.index), len(source.text))
    problem = str(error.problem).rstrip(".")
    code, message, span, help = _explain(source, problem, offset)
    notes: tuple[str, ...] = ()
    if error.context and error.context_mark is not None:
        place = source.location(min(int(error.context_mark.index), len(source.text)))
        notes = (f"{error.context}, which begins on line {place.line}",)
    return Diagnostic(code, "error", message, source, span, help, notes)


def _explain(source: Source, problem: str, offset: int) -> tuple[str, str, Span, str | None]:
    line_idx = source.line_idx(offset)
    line, start = source.line(line_idx), source.line_start(line_idx)
    here = Span(offset, offset + 1)
    if "{{" in line:
        at = start + line.index("{{")
        message = "an unquoted '{{' begins a YAML mapping, not a text"
        help = "FlowForge writes ${ … }; for literal braces, quote the text"
        return "WF016", message, Span(at, at + 2), help
    if "${" in line and ("expected ',' or" in problem or "flow" in problem):
        at = start + line.index("${")
        message = "'${' must be quoted inside { } and [ ], where YAML splits at braces"
        return "WF016", message, Span(at, at + 2), 'write "${ … }" with quotes around it'
    return "WF007", *_explain_syntax(problem, here)


def _explain_syntax(problem: str, here: Span) -> tuple[str, Span, str | None]:
    if problem.startswith("mapping values are not allowed"):
        return "': ' inside a plain value begins a mapping", here, _BLOCK_OR_QUOTES
    if "'\\t'" in problem:
        return "a tab cannot indent YAML", here, "indent with spaces"
    if "cannot start any token" in problem:
        char = problem.split("'")[1] if "'" in problem else "it"
        return f"a plain value cannot begin with {char!r}", here, "quote the value"
    if "comment or a line break" in problem or "chomping or indentation" in problem:
        message = "'>' and '|' begin a block of text, which starts on the next line"
        return message, here, "quote the value if it is an expression or a short text"
    if "found '<scalar>'" in problem or "found '?'" in problem:
        help = "check the indentation and quotes of this line and the one above"
        return f"not valid YAML: {problem}", here, help
    if "found '<block mapping start>'" in problem or "found '<block sequence start>'" in problem:
        message = "the line is indented like none of the lines above it"
        return message, here, "indent it as far as the lines that it belongs to"
    if "end of stream" in problem:
        message = "the file ends within a quoted text"
        return message, here, "close the quotes that were opened there"
    return f"not valid YAML: {problem}", here, None
