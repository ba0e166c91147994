"""Which family writes its calls how: the only place that knows.

Sources: the chat templates of the models named, mistral-common, and the handlers of the Berkeley
function-calling leaderboard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import EngineError
from flowforge.grammars.tool_formats.description import (
    Arguments,
    CallId,
    Gap,
    LiteralSyntax,
    Name,
    Span,
    TaggedSyntax,
    Text,
    ToolFormat,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_JSON = LiteralSyntax()
_THINK = Span("<think>", "</think>", "\n\n")
_NAMED_JSON = (Text('{"name": "'), Name(), Text('", "arguments": '), Arguments(), Text("}"))
_HERMES_CALL = (
    Text("<tool_call>"),
    Gap("\n"),
    *_NAMED_JSON,
    Gap("\n"),
    Text("</tool_call>"),
)

HERMES = ToolFormat(
    name="hermes",  # also Qwen2.5, Qwen3, Granite 4
    call=_HERMES_CALL,
    arguments=_JSON,
    separator=(Gap("\n"),),
    reasoning=_THINK,
    signs=("<tool_call>", '"arguments"'),
)

GENERIC = ToolFormat(
    name="generic",  # for templates that know no tools: told in the prompt, written as Hermes does
    call=_HERMES_CALL,
    arguments=_JSON,
    separator=(Gap("\n"),),
    reasoning=_THINK,
)

QWEN3_CODER = ToolFormat(
    name="qwen3-coder",  # also Qwen3.5
    call=(
        Text("<tool_call>"),
        Gap("\n"),
        Text("<function="),
        Name(),
        Text(">\n"),
        Arguments(),
        Text("</function>"),
        Gap("\n"),
        Text("</tool_call>"),
    ),
    arguments=TaggedSyntax("<parameter=", (Text(">\n"),), "\n</parameter>", (Text("\n"),)),
    separator=(Gap("\n"),),
    reasoning=_THINK,
    signs=("<function=", "<parameter="),
)

LLAMA3_JSON = ToolFormat(
    name="llama3-json",  # Llama 3.1, 3.2 and 3.3: the whole answer is one call
    call=(Text('{"name": "'), Name(), Text('", "parameters": '), Arguments(), Text("}")),
    arguments=_JSON,
    separator=None,
    anywhere=False,
    signs=("ipython", '"parameters"'),
)

PYTHONIC = ToolFormat(
    name="pythonic",  # Llama 4 and other models that write Python calls in a list
    begin=(Text("["),),
    call=(Name(), Arguments()),
    arguments=LiteralSyntax(
        opening="(",
        closing=")",
        pair_separator="=",
        quotes_argument_names=False,
        true="True",
        false="False",
        null="None",
    ),
    separator=(Text(", "),),
    end=(Text("]"),),
    anywhere=False,
    signs=("[func_name1(params_name1=",),
)

MISTRAL = ToolFormat(
    name="mistral",  # tokenizers up to v7
    begin=(Text("[TOOL_CALLS]"), Gap(" "), Text("[")),
    call=(
        *_NAMED_JSON[:-1],
        Text(', "id": "'),
        CallId("[a-zA-Z0-9]{9}", "a1b2c3d4e"),
        Text('"}'),
    ),
    arguments=_JSON,
    separator=(Text(", "),),
    end=(Text("]"),),
    signs=("[TOOL_CALLS]",),
)

MISTRAL_ARGS = ToolFormat(
    name="mistral-args",  # tokenizers from v11: Ministral 3, Devstral, Magistral
    call=(Text("[TOOL_CALLS]"), Name(), Text("[ARGS]"), Arguments()),
    arguments=_JSON,
    reasoning=Span("[THINK]", "[/THINK]"),
    signs=("[TOOL_CALLS]", "[ARGS]"),
)

PHI4 = ToolFormat(
    name="phi4",  # Phi-4-mini
    begin=(Text("<|tool_call|>"), Text("[")),
    call=_NAMED_JSON,
    arguments=_JSON,
    separator=(Text(", "),),
    end=(Text("]"), Text("<|/tool_call|>")),
    signs=("<|tool|>", "<|/tool|>"),
)

GRANITE3 = ToolFormat(
    name="granite3",
    begin=(Text("<|tool_call|>"), Text("[")),
    call=_NAMED_JSON,
    arguments=_JSON,
    separator=(Text(", "),),
    end=(Text("]"),),
    signs=("<|tool_call|>",),
)

DEEPSEEK_R1 = ToolFormat(
    name="deepseek-r1",  # R1 and V3: the arguments in a fence
    begin=(Text("<｜tool▁calls▁begin｜>"),),
    call=(
        Text("<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
        Name(),
        Text("\n```json\n"),
        Arguments(),
        Text("\n```<｜tool▁call▁end｜>"),
    ),
    arguments=_JSON,
    separator=(Gap("\n"),),
    end=(Text("<｜tool▁calls▁end｜>"),),
    reasoning=_THINK,
    signs=("<｜tool▁calls▁begin｜>", "```json"),
)

DEEPSEEK_V31 = ToolFormat(
    name="deepseek-v3.1",
    begin=(Text("<｜tool▁calls▁begin｜>"),),
    call=(
        Text("<｜tool▁call▁begin｜>"),
        Name(),
        Text("<｜tool▁sep｜>"),
        Arguments(),
        Text("<｜tool▁call▁end｜>"),
    ),
    arguments=_JSON,
    end=(Text("<｜tool▁calls▁end｜>"),),
    reasoning=_THINK,
    signs=("<｜tool▁calls▁begin｜>",),
)

KIMI_K2 = ToolFormat(
    name="kimi-k2",
    begin=(Text("<|tool_calls_section_begin|>"),),
    call=(
        Text("<|tool_call_begin|>functions."),
        Name(),
        Text(":"),
        CallId("[0-9]{1,3}", "0"),
        Text("<|tool_call_argument_begin|>"),
        Arguments(),
        Text("<|tool_call_end|>"),
    ),
    arguments=_JSON,
    end=(Text("<|tool_calls_section_end|>"),),
    signs=("<|tool_calls_section_begin|>",),
)

GPT_OSS = ToolFormat(
    name="gpt-oss",  # Harmony: every part of an answer names its channel
    call=(
        Text("<|channel|>commentary to=functions."),
        Name(),
        Text(" <|constrain|>json<|message|>"),
        Arguments(),
        Text("<|call|>"),
    ),
    arguments=_JSON,
    separator=None,
    anywhere=False,
    content=Span("<|channel|>final<|message|>", ""),
    reasoning=Span("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    signs=("<|channel|>", "functions."),
)

GLM = ToolFormat(
    name="glm",  # GLM 4.5 to 5
    call=(
        Text("<tool_call>"),
        Name(),
        Gap("\n"),
        Arguments(),
        Text("</tool_call>"),
    ),
    arguments=TaggedSyntax(
        "<arg_key>",
        (Text("</arg_key>"), Gap("\n"), Text("<arg_value>")),
        "</arg_value>",
        (Gap("\n"),),
    ),
    separator=(Gap("\n"),),
    reasoning=_THINK,
    signs=("<arg_key>", "<arg_value>"),
)


def _gemma_syntax(quote: str) -> LiteralSyntax:
    return LiteralSyntax(
        pair_separator=":",
        item_separator=",",
        quotes_argument_names=False,
        quotes_keys=False,
        inner_pair_separator=":",
        string_open=quote,
        string_close=quote,
        escapes=False,
    )


FUNCTION_GEMMA = ToolFormat(
    name="function-gemma",
    call=(
        Text("<start_function_call>call:"),
        Name(),
        Arguments(),
        Text("<end_function_call>"),
    ),
    arguments=_gemma_syntax("<escape>"),
    signs=("<start_function_call>",),
)

GEMMA4 = ToolFormat(
    name="gemma4",
    call=(Text("<|tool_call>call:"), Name(), Arguments(), Text("<tool_call|>")),
    arguments=_gemma_syntax('<|"|>'),
    signs=("<|tool_call>",),
)

JSON_LIST = ToolFormat(
    name="json-list",  # xLAM, Hammer: a bare list of calls
    begin=(Text("["),),
    call=_NAMED_JSON,
    arguments=_JSON,
    separator=(Text(", "),),
    end=(Text("]"),),
    anywhere=False,
)

# What recognises a template by more comes before what recognises it by less.
_FAMILIES = (
    QWEN3_CODER,
    GLM,
    MISTRAL_ARGS,
    MISTRAL,
    DEEPSEEK_R1,
    DEEPSEEK_V31,
    KIMI_K2,
    GPT_OSS,
    FUNCTION_GEMMA,
    GEMMA4,
    PHI4,
    GRANITE3,
    PYTHONIC,
    LLAMA3_JSON,
    HERMES,
    JSON_LIST,
    GENERIC,
)
TOOL_FORMATS = {one.name: one for one in _FAMILIES}


def choose_format(template_source: str, name: str | None = None) -> ToolFormat:
    """The format that a chat template speaks, GENERIC where it knows none; or the one named.

    Raises EngineError EN321 for a name that no format has.
    """
    if name is not None:
        found = TOOL_FORMATS.get(name)
        if found is None:
            raise _unknown(name, TOOL_FORMATS)
        return found
    for one in _FAMILIES:
        if one.signs and all(sign in template_source for sign in one.signs):
            return one
    return GENERIC


def _unknown(name: str, known: Iterable[str]) -> EngineError:
    return EngineError(
        "EN321",
        f"unknown tool format {name!r}",
        help=f"known formats: {', '.join(sorted(known))}",
    )
