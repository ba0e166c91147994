"""Types in, types out: what a Python type asks of a model, and the value it makes of the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic_core import core_schema

    from flowforge.backends.protocol import GenerationDone
    from flowforge.grammars.json_parts import JsonPart
    from flowforge.language.program import JsonValue

T = TypeVar("T")
TextT = TypeVar("TextT", bound=str)


@dataclass(frozen=True, slots=True)
class AnswerType(Generic[T]):
    """A type with the JSON Schema that a model is held to."""

    adapter: TypeAdapter[T]
    schema: Mapping[str, JsonValue]
    item: TypeAdapter[Any] | None = None
    """Of an item, if it is a `list[…]`."""

    def value_of(self, path: str, done: GenerationDone) -> T:
        """The typed value of an answer.

        Raises WorkflowError WF501 when it was cut off, WF41x when it breaks the schema, WF603 when
        the type refuses it for a reason that no schema can say.
        """
        from flowforge.grammars import validate_json

        require_not_cut_off(path, done)
        validate_json(done.text, self.schema)
        try:
            return self.adapter.validate_json(done.text)
        except ValidationError as error:
            raise _refused_by_type(f"the answer of step {path!r}", error) from error

    def item_reader(self, path: str) -> Callable[[JsonPart], Any]:
        """Reads one item of a list. Raises WorkflowError WF608 for another type."""
        item = self.item
        if item is None:
            raise WorkflowError(
                "WF608",
                f"step {path!r} gives no list[…], which alone has elements",
                help="go through the parts: stream.parts()",
            )

        def read(part: JsonPart) -> Any:
            try:
                return item.validate_json(json.dumps(part.value))
            except ValidationError as error:
                raise _refused_by_type(f"item {part.key} of step {path!r}", error) from error

        return read


def answer_type(kind: type[T] | TypeAdapter[T], items: int | None = None) -> AnswerType[T]:
    """The type with its JSON Schema; objects are closed, so that a model invents no keys.

    items: exact length of a list. Raises WorkflowError WF608 for a type without a JSON Schema.
    """
    try:
        adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        schema = cast("dict[str, JsonValue]", adapter.json_schema(schema_generator=_ClosedObjects))
    except PydanticUserError as error:
        raise _unusable(kind, error) from error
    if items is not None:
        if schema.get("type") != "array":
            raise WorkflowError(
                "WF608",
                f"items={items} asks for a list, and the type is {_shown(kind)}",
                help="use list[…], or leave items out",
            )
        schema |= {"minItems": items, "maxItems": items}
    is_list = get_origin(kind) is list and len(get_args(kind)) == 1
    return AnswerType(adapter, schema, TypeAdapter(get_args(kind)[0]) if is_list else None)


def choice_of(path: str, done: GenerationDone, options: Sequence[TextT]) -> TextT:
    """The option that the answer is. Raises WorkflowError WF501, WF513."""
    require_not_cut_off(path, done)
    for option in options:
        if option == done.text:
            return option
    raise WorkflowError(
        "WF513",
        f"step {path!r} answered {done.text[:60]!r}, expected one of "
        + ", ".join(map(repr, options)),
    )


def free_text(path: str, done: GenerationDone) -> str:
    """The text that the answer is, cut off or not."""
    del path
    return done.text


def text_of_regex(regex: str) -> Callable[[str, GenerationDone], str]:
    """Reads the text that the answer is; raises WorkflowError WF501 when it was cut off, WF513."""

    def read(path: str, done: GenerationDone) -> str:
        from flowforge.grammars import matches_regex

        require_not_cut_off(path, done)
        if not matches_regex(regex, done.text):
            raise WorkflowError(
                "WF513",
                f"step {path!r} answered {done.text[:60]!r}, which its regex does not match",
            )
        return done.text

    return read


def require_not_cut_off(path: str, done: GenerationDone) -> None:
    """Raise WorkflowError WF501 for an answer that must be whole and is not."""
    if done.finish_reason != "length":
        return
    raise WorkflowError(
        "WF501",
        f"step {path!r} was cut off after {done.usage.generated_tokens} tokens, before its answer "
        "was complete",
        help="raise max_tokens, or bound the type (items, lengths)",
    )


class _ClosedObjects(GenerateJsonSchema):
    """Objects take no keys but those they name, unless the type says that it takes others."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, Any]:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> dict[str, Any]:
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _unusable(kind: object, error: PydanticUserError) -> WorkflowError:
    return WorkflowError(
        "WF608",
        f"a model cannot answer with {_shown(kind)}: {str(error).splitlines()[0]}",
        help="use str, int, float, bool, list[…], a pydantic model or a TypeAdapter of these",
    )


def _shown(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and issubclass(kind, BaseModel) else repr(kind)


def _refused_by_type(what: str, error: ValidationError) -> WorkflowError:
    return WorkflowError(
        "WF603",
        f"{what} is not valid: {error.errors(include_url=False)[0]['msg']}",
        help="say in the prompt what the type's validators want, or ask again",
    )
