"""How a server is asked for an answer of a form, by the means that it has; judged here afterwards.

OpenAI takes JSON Schemas of objects only, so other forms are asked for as the one field of an
object, `{"answer": …}`, and taken out of it again. vLLM and SGLang have fields of their own for
choices and regular expressions, llama.cpp a grammar.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from flowforge.errors import EngineError, FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import GenerateRequest, JsonValue
    from flowforge.grammars.tool_formats import ToolCall
    from flowforge.language.answer_specs import GrammarSpec
    from flowforge.language.remote_models import RemoteModel

_ANSWER = "answer"
_STRICT_KEYWORDS = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const"),
        *("anyOf", "$ref", "$defs", "title", "description", "pattern", "format", "minimum"),
        *("maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
        *("minLength", "maxLength"),
    }
)
"""What OpenAI's strict mode knows."""
_FENCED = re.compile(r"\s*```[a-z]*\n(.*)\n```\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AskedForm:
    """fields: of the request's body. words: what the model is told.

    is_wrapped: the answer comes as the field of an object; is_text: and is a text there.
    may_be_fenced: it may stand in a block of code.
    """

    fields: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    words: str = ""
    is_wrapped: bool = False
    is_text: bool = False
    may_be_fenced: bool = False

    @property
    def is_shown_late(self) -> bool:
        """Whether the text is known only once all of it is there."""
        return self.is_wrapped or self.may_be_fenced

    def taken_out(self, text: str) -> str:
        """The answer itself; a text that is not as it was asked for stays as it is."""
        if self.may_be_fenced:
            fenced = _FENCED.fullmatch(text)
            return text if fenced is None else fenced[1]
        if not self.is_wrapped:
            return text
        try:
            value = json.loads(text)[_ANSWER]
        except (ValueError, KeyError, TypeError):
            return text
        if self.is_text:
            return value if isinstance(value, str) else text
        return json.dumps(value, ensure_ascii=False)


def form_of(request: GenerateRequest, model: RemoteModel) -> AskedForm:
    """How to ask for the form of an answer. Raises EngineError EN407 for one that cannot be."""
    if not request.may_take_form:
        return AskedForm()
    if request.grammar is not None:
        return _grammar(request.grammar, model)
    if model.dialect == "words":
        return AskedForm(words=_told(request), may_be_fenced=request.json_schema is not None)
    if request.json_schema is not None:
        return _json_form(request.json_schema, model)
    if request.choice is not None:
        return _choice(request.choice, model)
    assert request.regex is not None, "a form is one of four"
    return _regex(request.regex, model)


def require_form(request: GenerateRequest, text: str, calls: tuple[ToolCall, ...], by: str) -> None:
    """Judge a whole answer. by: the model. Raises EngineError EN406.

    A text under a grammar is judged where its value is made.
    """
    for call in calls:
        _require_call(request, call, by)
    if calls or not request.may_take_form:
        return
    if request.choice is not None and text not in request.choice:
        raise _formless(by, text, "which is none of the choices")
    if request.regex is not None:
        from flowforge.grammars import matches_regex

        if not matches_regex(request.regex, text):
            raise _formless(by, text, "which its regex does not match")
    if request.json_schema is not None:
        from flowforge.grammars import validate_json

        try:
            validate_json(text, cast("Any", request.json_schema))
        except FlowForgeError as error:
            raise _formless(by, text, error.message) from error


def _require_call(request: GenerateRequest, call: ToolCall, by: str) -> None:
    from flowforge.grammars import validate_json

    offered = {} if request.offer is None else {tool.name: tool for tool in request.offer.tools}
    if call.name not in offered:
        known = ", ".join(offered) or "none"
        raise _formless(by, call.name, f"which is no tool that it was offered: {known}")
    try:
        validate_json(json.dumps(dict(call.arguments)), offered[call.name].parameters)
    except FlowForgeError as error:
        shown = f"{call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})"
        raise _formless(by, shown, error.message) from error


def _formless(by: str, text: str, reason: str) -> EngineError:
    shown = text if len(text) <= 80 else f"{text[:80]}…"
    return EngineError(
        "EN406",
        f"{by} answered {shown!r}: {reason}",
        help="let the step try again (retry: 3), and say by 'dialect' what the server can enforce",
    )


def _json_form(schema: Mapping[str, JsonValue] | bool, model: RemoteModel) -> AskedForm:
    if model.dialect == "llama.cpp":
        plain: JsonValue = {} if isinstance(schema, bool) else dict(schema)
        return AskedForm({"response_format": {"type": "json_object", "schema": plain}})
    if isinstance(schema, bool):
        return AskedForm({"response_format": {"type": "json_object"}})
    if model.dialect == "openai" and schema.get("type") != "object":
        return _wrapped(dict(schema), model)
    return AskedForm({"response_format": _response_format(dict(schema))})


def _choice(choices: tuple[str, ...], model: RemoteModel) -> AskedForm:
    match model.dialect:
        case "vllm":
            return AskedForm({"structured_outputs": {"choice": [*choices]}})
        case "sglang":
            return AskedForm({"regex": "(" + "|".join(map(re.escape, choices)) + ")"})
        case "llama.cpp":
            # A text in GBNF is escaped as in JSON.
            texts = " | ".join(json.dumps(choice) for choice in choices)
            return AskedForm({"grammar": f"root ::= {texts}"})
        case _:
            return _wrapped({"type": "string", "enum": [*choices]}, model, is_text=True)


def _regex(regex: str, model: RemoteModel) -> AskedForm:
    match model.dialect:
        case "vllm":
            return AskedForm({"structured_outputs": {"regex": regex}})
        case "sglang":
            return AskedForm({"regex": regex})
        case _:
            schema: dict[str, JsonValue] = {"type": "string", "pattern": f"^({regex})$"}
            return _wrapped(schema, model, is_text=True)


def _grammar(spec: GrammarSpec, model: RemoteModel) -> AskedForm:
    if model.dialect != "vllm":
        raise EngineError(
            "EN407",
            f"{model.label} cannot be held to the grammar {spec.file!r}: its dialect "
            f"{model.dialect!r} takes none",
            help="run this step on the engine, or on a vLLM server (dialect = 'vllm')",
        )
    from flowforge.backends.answer_grammars import source_of

    return AskedForm({"structured_outputs": {"grammar": source_of(spec).text}})


def _wrapped(schema: JsonValue, model: RemoteModel, *, is_text: bool = False) -> AskedForm:
    whole: dict[str, JsonValue] = {
        "type": "object",
        "properties": {_ANSWER: schema},
        "required": [_ANSWER],
        "additionalProperties": False,
    }
    if isinstance(schema, dict) and "$defs" in schema:
        # What a schema refers to is looked up from the root.
        whole["$defs"] = schema["$defs"]
    if model.dialect == "llama.cpp":
        fields: dict[str, JsonValue] = {"response_format": {"type": "json_object", "schema": whole}}
    else:
        fields = {"response_format": _response_format(whole)}
    return AskedForm(fields, is_wrapped=True, is_text=is_text)


def _response_format(schema: dict[str, JsonValue]) -> JsonValue:
    closed = _closed(schema)
    is_strict = _is_strict(closed)
    shape: JsonValue = {
        "name": _ANSWER,
        "schema": closed if is_strict else schema,
        "strict": is_strict,
    }
    return {"type": "json_schema", "json_schema": shape}


def _closed(part: JsonValue) -> JsonValue:
    """The schema with objects that say nothing of further keys closed: a part of what it allows."""
    if isinstance(part, list):
        return [*map(_closed, part)]
    if not isinstance(part, dict):
        return part
    closed: dict[str, JsonValue] = {}
    for name, value in part.items():
        if name in ("properties", "$defs") and isinstance(value, dict):
            closed[name] = {key: _closed(one) for key, one in value.items()}
        else:
            closed[name] = value if name in ("enum", "const", "required") else _closed(value)
    if "properties" in part:
        closed.setdefault("additionalProperties", False)
    return closed


def _is_strict(part: JsonValue) -> bool:
    """Whether a schema keeps to what strict mode takes: all keys required, no others."""
    if not isinstance(part, dict):
        return False
    if not part.keys() <= _STRICT_KEYWORDS:
        return False
    properties = cast("dict[str, JsonValue]", part.get("properties", {}))
    if part.get("type") == "object" and (
        part.get("additionalProperties") is not False
        or set(cast("list[str]", part.get("required", []))) != set(properties)
    ):
        return False
    inner = [*properties.values(), *cast("dict[str, JsonValue]", part.get("$defs", {})).values()]
    inner += cast("list[JsonValue]", part.get("anyOf", []))
    if "items" in part:
        inner.append(part["items"])
    return all(map(_is_strict, inner))


def _told(request: GenerateRequest) -> str:
    if request.json_schema is not None:
        schema = json.dumps(request.json_schema, ensure_ascii=False)
        return f"Answer with JSON alone, valid under this JSON Schema: {schema}"
    if request.choice is not None:
        return f"Answer with exactly one of these texts: {', '.join(request.choice)}"
    return f"Answer with a text that matches this regular expression: {request.regex}"
