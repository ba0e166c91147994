"""The form that an answer must have, from the several ways in which requests say it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from flowforge.backends.protocol import GenerateRequest
from flowforge.language.answer_specs import PLAIN_OPTIONS, AnswerOptions, GrammarSpec
from flowforge.language.json_values import kind_of_value
from flowforge.serving.failures import bad_request
from flowforge.serving.requests import ChatRequest

if TYPE_CHECKING:
    from flowforge.backends.protocol import JsonValue
    from flowforge.serving.requests import SamplingFields, SchemaSpec, StructuredOutputs

_RELAXED = AnswerOptions(on_unsupported="relax")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def form_of(request: SamplingFields) -> GenerateRequest:
    """A request with the answer's form and nothing else. Raises RequestError 400 for two forms."""
    found = _forms(request)
    if len(found) > 1:
        raise bad_request("the form of the answer is said in more than one way", found[1][0])
    return found[0][1] if found else GenerateRequest()


def form_field_of(request: SamplingFields) -> str | None:
    """The field that says the form, if one does. Raises as `form_of`."""
    return next((field for field, _ in _forms(request)), None)


def _forms(request: SamplingFields) -> list[tuple[str, GenerateRequest]]:
    return [*_own_forms(request), *_extended_forms(request)]


def _own_forms(request: SamplingFields) -> list[tuple[str, GenerateRequest]]:
    asked = request.response_format if isinstance(request, ChatRequest) else None
    if asked is None or asked.type == "text":
        return []
    if asked.json_schema is None:
        return [("response_format", GenerateRequest(json_schema=_ANY_OBJECT))]
    return [("response_format", _of_schema(asked.json_schema))]


def _of_schema(spec: SchemaSpec) -> GenerateRequest:
    schema = _ANY_OBJECT if spec.json_schema is None else spec.json_schema
    # A schema that is not strict is a wish: what no mask can hold the answer to is passed over.
    return GenerateRequest(json_schema=schema, options=PLAIN_OPTIONS if spec.strict else _RELAXED)


def _extended_forms(request: SamplingFields) -> list[tuple[str, GenerateRequest]]:
    outputs = request.structured_outputs
    forms = [] if outputs is None else _structured(outputs)
    if request.guided_json is not None:
        forms.append(("guided_json", _of_json(request.guided_json, "guided_json")))
    if request.guided_regex is not None:
        forms.append(("guided_regex", GenerateRequest(regex=request.guided_regex)))
    if request.guided_choice is not None:
        forms.append(("guided_choice", GenerateRequest(choice=tuple(request.guided_choice))))
    if request.guided_grammar is not None:
        forms.append(("guided_grammar", _of_grammar(request.guided_grammar)))
    return forms


def _structured(outputs: StructuredOutputs) -> list[tuple[str, GenerateRequest]]:
    forms: list[tuple[str, GenerateRequest]] = []
    if outputs.json_ is not None:
        field = "structured_outputs.json"
        forms.append((field, _of_json(outputs.json_, field)))
    if outputs.json_object:
        field = "structured_outputs.json_object"
        forms.append((field, GenerateRequest(json_schema=_ANY_OBJECT)))
    if outputs.regex is not None:
        forms.append(("structured_outputs.regex", GenerateRequest(regex=outputs.regex)))
    if outputs.choice is not None:
        forms.append(("structured_outputs.choice", GenerateRequest(choice=tuple(outputs.choice))))
    if outputs.grammar is not None:
        forms.append(("structured_outputs.grammar", _of_grammar(outputs.grammar)))
    return forms


def _of_json(schema: dict[str, Any] | str | bool, place: str) -> GenerateRequest:
    if isinstance(schema, str):
        try:
            read: object = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{place} is no JSON: {error}", place) from None
        if not isinstance(read, dict | bool):
            found = kind_of_value(cast("JsonValue", read))
            raise bad_request(f"{place} is {found}, expected an object", place)
        schema = read
    return GenerateRequest(json_schema=schema)


def _of_grammar(text: str) -> GenerateRequest:
    spec = GrammarSpec(text, "the request's grammar", is_inline=True, has_tree=False)
    return GenerateRequest(grammar=spec)
