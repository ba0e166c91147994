"""How an answer in JSON is held to its schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

OnUnsupported: TypeAlias = Literal["error", "relax"]
Whitespace: TypeAlias = Literal["compact", "bounded"]


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """Options of one schema.

    on_unsupported: what happens to keywords that no mask can enforce. "error" refuses the schema;
    "relax" leaves exactly them to `validate_json`, which always judges the whole answer.
    whitespace: "compact" has none between the tokens of JSON; "bounded" allows up to eight
    characters of it where JSON does.
    closes_objects: whether an object that names its properties, and says nothing of others, takes
    no others. With False it takes any, as JSON Schema has it.
    """

    on_unsupported: OnUnsupported = "error"
    whitespace: Whitespace = "compact"
    closes_objects: bool = True


STRICT = JsonOptions()
