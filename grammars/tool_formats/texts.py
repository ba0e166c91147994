"""Which arguments of a tagged syntax are texts, written as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.grammars.lowering.values import listed_values
from flowforge.grammars.tool_formats.values import (
    NotEnforceable,
    require_known,
    resolve,
    text_body,
    text_of_constant,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.grammars.schema_dialect import JsonValue

NULL = "null"


@dataclass(frozen=True, slots=True)
class TextArgument:
    """An argument that is a text. schema: of the text. may_be_null: whether `null` means null."""

    schema: Mapping[str, JsonValue]
    may_be_null: bool = False

    def body(self, ending: str) -> str:
        """A terminal's expression for the text; `ending` follows it. Raises NotEnforceable."""
        body = self._body(ending)
        return f'"{NULL}" | (({body}) & ~"{NULL}")' if self.may_be_null else body

    def read(self, text: str) -> str | None:
        """The value that a text stands for."""
        return None if self.may_be_null and text == NULL else text

    def write(self, value: JsonValue) -> str:
        """The text that stands for a value."""
        return NULL if value is None else str(value)

    def _body(self, ending: str) -> str:
        values = listed_values(self.schema)
        if values is not None:
            require_known(self.schema, {"enum", "const", "type"})
            texts = [text_of_constant(value, ending) for value in values if isinstance(value, str)]
            return " | ".join(texts)
        require_known(self.schema, {"type", "minLength", "maxLength", "pattern", "format"})
        return text_body(self.schema)


def text_argument(schema: JsonValue, root: Mapping[str, JsonValue]) -> TextArgument | None:
    """How an argument is a text; None for one that is written as JSON.

    root: what references in the schema are resolved in.
    """
    if not isinstance(schema, dict):
        return None
    schema = _followed(schema, root)
    branches = schema.get("anyOf")
    if isinstance(branches, list):
        plain = [_followed(one, root) for one in branches if isinstance(one, dict)]
        texts = [one for one in plain if one.get("type") != NULL]
        if len(plain) == len(branches) == 2 and len(texts) == 1 and _is_text(texts[0]):
            return TextArgument(texts[0], may_be_null=True)
        return None
    if schema.get("type") == ["string", NULL] and "enum" not in schema:
        return TextArgument({**schema, "type": "string"}, may_be_null=True)
    return TextArgument(schema) if _is_text(schema) else None


def _followed(schema: dict[str, JsonValue], root: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema that a reference, or an `allOf` of one, leads to."""
    for _ in range(16):
        reference, whole = schema.get("$ref"), schema.get("allOf")
        try:
            target = resolve(reference, root) if isinstance(reference, str) else None
        except NotEnforceable:
            return schema
        if isinstance(whole, list) and len(whole) == 1:
            target = whole[0]
        if not isinstance(target, dict):
            return schema
        schema = target
    return schema


def _is_text(schema: Mapping[str, JsonValue]) -> bool:
    values = listed_values(schema)
    if values is not None:
        return bool(values) and all(isinstance(value, str) for value in values)
    return schema.get("type") == "string"
