"""The tools that a workflow declares under `tools:`; no code of theirs is imported here."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from flowforge.language.answer_grammars import GrammarScope, grammar_of
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.durations import duration_of
from flowforge.language.fields import (
    check_keys,
    integer_of,
    is_safe_name,
    mapping_of,
    place_of,
    text_of,
    texts_of,
    word_of,
)
from flowforge.language.named_types import schema_of_entry
from flowforge.language.program import McpServer, ToolSpec
from flowforge.language.scope import Names
from flowforge.language.secrets import with_secrets
from flowforge.language.template_parser import parse_template
from flowforge.language.types import ANY, type_of_schema
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, SequenceNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.answer_grammars import GrammarChecker
    from flowforge.language.answer_specs import GrammarSpec
    from flowforge.language.named_types import NamedTypes
    from flowforge.language.program import JsonValue, Program
    from flowforge.language.scope import Report
    from flowforge.language.subflows import Subflows
    from flowforge.language.yaml_nodes import Entry

_SOURCES = ("python", "mcp", "workflow")
_KEYS = (
    *_SOURCES,
    "description",
    "effect",
    "on_uncertain",
    "timeout",
    "concurrency",
    "parameters",
    "returns",
    "only",
    "max_result",
    "grammars",
)
_MCP_KEYS = ("command", "url", "env", "token_env", "headers")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FORM = "write tools: { filings: { python: tools.filings:query, effect: read } }"
_GRAMMARS_FORM = "write grammars: { ARGUMENT: 'file.lark' }"
_MCP_FORM = "write mcp: { command: [python, server.py] } or mcp: { url: 'http://…' }"
_NAMED_FORM = "write { NAME: '${ secrets.API_KEY }' }"
_MAX_CONCURRENCY = 10_000
_MAX_RESULT_CHARS = 10_000_000


def parse_tools(
    entry: Entry | None,
    types: NamedTypes,
    secrets: tuple[str, ...],
    subflows: Subflows,
    report: Report,
    grammar_checker: GrammarChecker | None = None,
) -> dict[str, ToolSpec]:
    """The declared tools; one that is broken takes and returns anything.

    secrets: names of those that servers may be given.
    """
    scope = GrammarScope(report.source, report, subflows, grammar_checker)
    mapping = None if entry is None else mapping_of(entry, report, _FORM)
    tools: dict[str, ToolSpec] = {}
    for one in mapping.entries if mapping is not None else ():
        is_safe_name(one.key, one.key_span, "tool", report)
        if "__" in one.key:
            message = f"tool name {one.key!r} has '__' in it"
            help = "that stands between a server and its tools"
            report.error("WF105", message, one.key_span, help)
        declaration = mapping_of(one, report, _FORM)
        if declaration is not None:
            check_keys(declaration, _KEYS, (), f"tool {one.key!r}", report)
            server = _server_of(declaration.entry("mcp"), secrets, report)
            tools[one.key] = _tool_of(one, declaration, server, types, scope)
    return tools


def _tool_of(
    entry: Entry,
    declaration: MappingNode,
    server: McpServer | None,
    types: NamedTypes,
    scope: GrammarScope,
) -> ToolSpec:
    report = scope.report
    returns = declaration.entry("returns")
    result = None if returns is None else schema_of_entry(returns, "WF118", types, report, None)
    only, description = declaration.entry("only"), declaration.entry("description")
    most = integer_of(declaration.entry("max_result"), report, 1, _MAX_RESULT_CHARS)
    parameters = _parameters_of(declaration.entry("parameters"), types, report)
    spec = ToolSpec(
        name=entry.key,
        function=_function_of(declaration.entry("python"), report),
        effect=_effect_of(declaration, report),
        on_uncertain=_on_uncertain_of(declaration, report),
        parameters=parameters,
        result=ANY if result is None else type_of_schema(result),
        timeout_s=duration_of(declaration.entry("timeout"), report),
        concurrency=integer_of(declaration.entry("concurrency"), report, 1, _MAX_CONCURRENCY),
        location=report.source.location(entry.key_span.start),
        description=("" if description is None else text_of(description, report)) or "",
        server=server,
        program=_program_of(declaration.entry("workflow"), scope.subflows, report),
        only=tuple(name for name, _ in texts_of(only, report, "tools")) if only else (),
        grammars=_grammars_of(declaration.entry("grammars"), parameters, scope),
    )
    _check_source(entry, declaration, report)
    return spec if most is None else replace(spec, max_result_chars=most)


def _check_source(entry: Entry, declaration: MappingNode, report: Report) -> None:
    """Report a tool that is nothing or several things, and keys that are not for what it is."""
    given = [key for key in _SOURCES if declaration.entry(key) is not None]
    if not given:
        message = f"tool {entry.key!r} does not say what it is"
        help = "add python: module:function, or mcp, or workflow"
        report.error("WF103", message, entry.key_span, help)
        return
    if len(given) > 1:
        second = declaration.entry(given[1])
        assert second is not None
        message = f"tool {entry.key!r} is both {given[0]!r} and {given[1]!r}"
        report.error("WF132", message, second.key_span, "declare two tools")
    foreign = {
        "python": ("only",),
        "mcp": ("parameters", "returns", "grammars"),
        "workflow": ("only", "parameters", "returns", "grammars", "concurrency", "timeout"),
    }[given[0]]
    for key in foreign:
        found = declaration.entry(key)
        if found is not None:
            message = f"{key!r} cannot be said of a tool that is {given[0]!r}"
            report.error("WF132", message, found.key_span, "remove it")


def _function_of(python: Entry | None, report: Report) -> str:
    text = None if python is None else text_of(python, report)
    if python is not None and text is not None and not _FUNCTION.fullmatch(text.strip()):
        message = f"'python' must be module:function, got {text[:60]!r}"
        report.error("WF132", message, place_of(python, report), "for example tools.filings:query")
    return "" if text is None else text.strip()


def _server_of(entry: Entry | None, secrets: tuple[str, ...], report: Report) -> McpServer | None:
    mapping = None if entry is None else mapping_of(entry, report, _MCP_FORM)
    if entry is None or mapping is None:
        return None
    check_keys(mapping, _MCP_KEYS, (), "'mcp'", report)
    command, url = mapping.entry("command"), mapping.entry("url")
    if (command is None) == (url is None):
        message = "'mcp' is reached by a command or by a url"
        report.error("WF132", message, entry.key_span, _MCP_FORM)
    env, token = mapping.entry("env"), mapping.entry("token_env")
    headers = mapping.entry("headers")
    is_mapped = env is not None and isinstance(env.value, MappingNode)
    if headers is not None and url is None:
        message = "'headers' go to a url, and this server is a process"
        report.error("WF132", message, headers.key_span, "write env: { NAME: value }")
    names = () if env is None or is_mapped else texts_of(env, report, "names")
    return McpServer(
        command=_command_of(command, report),
        url=_url_of(url, report),
        env_names=tuple(name for name, _ in names),
        token_env=None if token is None else text_of(token, report),
        env=_texts_by_name(env if is_mapped else None, secrets, report),
        headers=_texts_by_name(headers, secrets, report),
    )


def _texts_by_name(entry: Entry | None, secrets: tuple[str, ...], report: Report) -> dict[str, str]:
    """Texts that may hold secrets, and no other expressions: a server is there before any value."""
    mapping = None if entry is None else mapping_of(entry, report, _NAMED_FORM)
    names = with_secrets(Names({}), secrets)
    found: dict[str, str] = {}
    for one in mapping.entries if mapping is not None else ():
        if text_of(one, report) is None:
            continue
        assert isinstance(one.value, ScalarNode)
        num_known = len(report.diagnostics)
        text = parse_template(report.source, one.value, report).whole(names, report)
        if len(report.diagnostics) == num_known:
            found[one.key] = cast("str", text.evaluate({}))
    return found


def _command_of(entry: Entry | None, report: Report) -> tuple[str, ...]:
    if entry is None:
        return ()
    words = entry.value.items if isinstance(entry.value, SequenceNode) else ()
    texts = [word.text for word in words if isinstance(word, ScalarNode)]
    if not texts or len(texts) < len(words):
        message = "'command' must be a list: a program and its arguments"
        report.error("WF107", message, place_of(entry, report), _MCP_FORM)
    return tuple(texts)


def _url_of(entry: Entry | None, report: Report) -> str | None:
    text = None if entry is None else text_of(entry, report)
    if entry is not None and text is not None and not text.startswith(("http://", "https://")):
        message = f"'url' must begin with http:// or https://, got {text[:60]!r}"
        report.error("WF132", message, place_of(entry, report), _MCP_FORM)
    return text


def _program_of(entry: Entry | None, subflows: Subflows, report: Report) -> Program | None:
    path = None if entry is None else text_of(entry, report)
    if entry is None or path is None:
        return None
    return subflows.load(path, place_of(entry, report), report)


def _effect_of(declaration: MappingNode, report: Report) -> Literal["read", "idempotent", "write"]:
    word = word_of(declaration.entry("effect"), report, ("read", "idempotent", "write"))
    if word == "read":
        return "read"
    # Nobody is hurt by taking a tool that says nothing for one that changes something.
    return "idempotent" if word == "idempotent" else "write"


def _on_uncertain_of(declaration: MappingNode, report: Report) -> Literal["ask", "retry", "fail"]:
    word = word_of(declaration.entry("on_uncertain"), report, ("ask", "retry", "fail"))
    match word:
        case "retry" | "fail":
            return word
        case _:
            return "ask"


def _parameters_of(
    entry: Entry | None, types: NamedTypes, report: Report
) -> dict[str, JsonValue] | None:
    if entry is None:
        return None
    schema = schema_of_entry(entry, "WF118", types, report, None)
    if schema is not None and schema.get("type") != "object":
        message = "'parameters' must be a JSON Schema of an object"
        help = "parameters: { type: object, properties: { year: { type: integer } } }"
        report.error("WF132", message, place_of(entry, report), help)
        return None
    return schema


def _grammars_of(
    entry: Entry | None, parameters: Mapping[str, JsonValue] | None, scope: GrammarScope
) -> dict[str, GrammarSpec]:
    """The grammars of arguments, by name."""
    mapping = None if entry is None else mapping_of(entry, scope.report, _GRAMMARS_FORM)
    properties = None if parameters is None else parameters.get("properties")
    found: dict[str, GrammarSpec] = {}
    for one in mapping.entries if mapping is not None else ():
        if isinstance(properties, dict) and one.key not in properties:
            help = did_you_mean(one.key, properties, f"'parameters' has {', '.join(properties)}")
            message = f"there is no argument {one.key[:60]!r}"
            scope.report.error("WF132", message, one.key_span, help)
            continue
        spec = grammar_of(one, scope)
        if spec is not None and spec.dialect != "lark":
            message = "an argument's grammar is one of lark's"
            scope.report.error("WF132", message, one.key_span, "remove 'dialect'")
        elif spec is not None:
            found[one.key] = spec
    return found
