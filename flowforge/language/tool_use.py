"""The keys of `gen` that let the model call tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import integer_of, place_of, text_of, texts_of, word_of
from flowforge.language.program import ToolUse
from flowforge.language.yaml_nodes import ScalarNode, SequenceNode

if TYPE_CHECKING:
    from flowforge.language.drafts import Context
    from flowforge.language.gen_options import AnswerForm
    from flowforge.language.program import ToolSpec
    from flowforge.language.source import Span
    from flowforge.language.yaml_nodes import Entry, MappingNode

TOOL_KEYS = ("tools", "rounds", "parallel", "on_rounds", "on_tool_error")
Choice: TypeAlias = Literal["auto", "required", "none"]

_CHOICES = ("auto", "required", "none")
_MAX_ROUNDS = 1_000
_MAX_CALLS = 64
_DEFAULTS = ToolUse(())


def tool_use_of(options: MappingNode, form: AnswerForm, context: Context) -> ToolUse | None:
    """The tools of a step; None without any, or after a reported problem."""
    entry = options.entry("tools")
    if entry is None:
        _refuse_lone_keys(options, context)
        return None
    report = context.report
    tools = [_tool_of(name, span, context) for name, span in texts_of(entry, report, "tools")]
    known = tuple(tool for tool in tools if tool is not None)
    _refuse_others(options, form, known, context)
    choice, named = _choice_of(options.entry("choice"), known, context)
    on_rounds = word_of(options.entry("on_rounds"), report, ("answer", "fail"))
    on_error = word_of(options.entry("on_tool_error"), report, ("tell", "fail"))
    return ToolUse(
        known,
        choice,
        named,
        integer_of(options.entry("rounds"), report, 1, _MAX_ROUNDS) or _DEFAULTS.rounds,
        _max_calls_of(options.entry("parallel"), context),
        "fail" if on_rounds == "fail" else "answer",
        "fail" if on_error == "fail" else "tell",
    )


def _tool_of(name: str, span: Span, context: Context) -> ToolSpec | None:
    tool = context.tools.get(name)
    if tool is None:
        known = ", ".join(context.tools)
        otherwise = f"tools: {known}" if known else "declare it: tools: { NAME: { python: … } }"
        help = did_you_mean(name, context.tools, otherwise)
        context.report.error("WF131", f"there is no tool {name[:60]!r}", span, help)
    return tool


def _choice_of(
    entry: Entry | None, tools: tuple[ToolSpec, ...], context: Context
) -> tuple[Choice, str | None]:
    if entry is None:
        return "auto", None
    report = context.report
    if isinstance(entry.value, SequenceNode):
        # The texts of which the answer is one.
        return "auto", None
    if not isinstance(entry.value, ScalarNode):
        message = "beside 'tools', 'choice' says which tool is called"
        words = "write choice: auto, required, none or a tool's name; a list is that of the answers"
        report.error("WF133", message, entry.key_span, words)
        return "auto", None
    word = text_of(entry, report)
    match word:
        case None | "auto":
            return "auto", None
        case "required" | "none":
            return word, None
        case _:
            pass
    names = [tool.name for tool in tools if tool.server is None]
    server, _, member = word.partition("__")
    is_member = any(tool.name == server and tool.server is not None for tool in tools)
    if word in names or (member and is_member):
        return "required", word
    help = did_you_mean(word, [*_CHOICES, *names], f"choices: {', '.join([*_CHOICES, *names])}")
    message = f"no tool {word[:60]!r} is among the step's"
    report.error("WF131", message, place_of(entry, report), help)
    return "auto", None


def _max_calls_of(entry: Entry | None, context: Context) -> int:
    value = entry.value.value if entry is not None and isinstance(entry.value, ScalarNode) else None
    if entry is None or value is True:
        return _DEFAULTS.max_calls
    if value is False:
        return 1
    return integer_of(entry, context.report, 1, _MAX_CALLS) or _DEFAULTS.max_calls


def _refuse_others(
    options: MappingNode, form: AnswerForm, tools: tuple[ToolSpec, ...], context: Context
) -> None:
    """Report what cannot stand beside tools."""
    message = "a step with tools gives one answer"
    _report_each(options, ("n", "pick"), message, "put the step into a 'for'", context)
    relaxes = options.entry("on_unsupported")
    if relaxes is not None and form.options.on_unsupported == "relax":
        changing = [tool.name for tool in tools if tool.effect == "write"]
        if changing:
            message = f"an answer that is asked for again would call {changing[0]!r} again"
            help = (
                "say 'effect: read' or 'idempotent' of it, or relax a second step: from: THIS_STEP"
            )
            context.report.error("WF133", message, relaxes.key_span, help)
    message = "'stop' would end a call in its middle"
    _report_each(options, ("stop",), message, "bound the answer with max_tokens", context)


def _refuse_lone_keys(options: MappingNode, context: Context) -> None:
    for key in TOOL_KEYS[1:]:
        entry = options.entry(key)
        if entry is not None:
            message = f"{key!r} is about tools, and the step has none"
            context.report.error("WF133", message, entry.key_span, "add tools: [NAME]")


def _report_each(
    options: MappingNode, keys: tuple[str, ...], message: str, help: str, context: Context
) -> None:
    for key in keys:
        entry = options.entry(key)
        if entry is not None:
            context.report.error("WF133", message, entry.key_span, help)
